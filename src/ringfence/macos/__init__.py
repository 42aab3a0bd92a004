"""What macOS has beyond POSIX: a Seatbelt profile of a policy, as text. No system call is made here."""
