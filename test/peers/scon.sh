#!/bin/sh
# Starts SCON in a network namespace, and returns when it is active; prints its status; or
# stops it, keeps its status in $PEERS/counts, and forgets what scon-cni.sh has of the
# namespace: the next one may have its number.
#
# Usage: scon.sh up|count|down NETNS
set -eu
netns=$2
number=$(stat -L -c %i "$netns")
own=$PEERS/$number
case $1 in
up)
	"$PEERS/scon" up --netns "$netns" --config "$PEERS/scon.yaml" --state-dir "$own" --socket "$own/scon.sock" >"$own.log" 2>&1 || {
		cat "$own.log" >&2
		exit 1
	}
	;;
count) "$PEERS/scon" status --json --socket "$own/scon.sock" ;;
down)
	[ -e "$own" ] || exit 0
	"$0" count "$netns" >"$(mktemp "$PEERS/counts/XXXXXX")"
	"$PEERS/scon" down --netns "$netns" --state-dir "$own" --socket "$own/scon.sock" >"$own.log" 2>&1 || {
		cat "$own.log" >&2
		exit 1
	}
	rm -rf "$own" "$own.log" "$PEERS/plugins/$number"
	;;
esac
