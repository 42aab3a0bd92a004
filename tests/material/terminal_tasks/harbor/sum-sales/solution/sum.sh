sum() {
  total=0
  while IFS=, read -r _ amount; do total=$((total + amount)); done
  echo "$total"
}
