#!/bin/sh
# Runs a command as the owner of these sources, where root runs it and the owner is a user
# of this machine: with the owner's home and Go caches (OWNER_GOCACHE and OWNER_GOMODCACHE,
# where the owner's environment has others than the home's).
#
# Usage: scripts/as-owner.sh COMMAND [ARG...]
#        scripts/as-owner.sh -c TEXT            what make says to a shell
set -eu
[ "$1" != -c ] || set -- sh "$@"
owner=$(stat -c %U "$(dirname "$0")")
if [ "$(id -u)" != 0 ] || [ "$owner" = root ] || [ "$owner" = UNKNOWN ]; then
	exec "$@"
fi
exec setpriv --reuid "$owner" --regid "$(id -g "$owner")" --init-groups \
	env "HOME=$(getent passwd "$owner" | cut -d: -f6)" "USER=$owner" "LOGNAME=$owner" \
	${OWNER_GOCACHE:+"GOCACHE=$OWNER_GOCACHE"} ${OWNER_GOMODCACHE:+"GOMODCACHE=$OWNER_GOMODCACHE"} "$@"
