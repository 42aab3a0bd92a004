"""Evidence: what happened, in a form that nobody can rewrite and anybody can verify.

Imports no sandbox code and runs on any OS. docs/reference/formats.md is the specification,
docs/explanation/bundle.md says what it proves.

  strictjson  canonical  digest          text to value, value to bytes, bytes to digests
  chain  chainfile                       the hash chain, and the chain on disk
  keys  keyfile                          Ed25519 keys, and keys on disk
  shape  schema                          what a document must look like
  runrecord  inputs  bundle  dsse        making: claims, submission manifest, signed bundle, in-toto statement
  verify: checks  claims  artifactfiles  the verification steps, in docs/reference/formats.md's order
  trust  anchors                         whom to believe: keys and roles, logs and time stamps
  merkle  translog  timestamp            the local transparency log, RFC 3161
"""
