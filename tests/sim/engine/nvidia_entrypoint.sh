#!/bin/sh
# Stand-in for a pass-through entrypoint: a banner, then the command as given (or a shell).
echo
echo "== vLLM =="
echo "== simulated image: a stand-in, no GPU behind it =="
echo
[ $# -gt 0 ] || set -- /bin/sh
exec "$@"
