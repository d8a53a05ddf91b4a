#!/bin/sh
# CNI's plugin bridge or ptp, whichever name this file is called by, made of scon-cni. Lists
# have the same keys, except kind, and hairpinMode, which scon-cni refuses. Each host of a
# suite has a state directory of its own: beside the socket of an agent, which it has not.
# The file "called" tells the suite that it was.
own=$PEERS/plugins/$(stat -L -c %i /proc/self/ns/net)
mkdir -p "$own"
: >"$PEERS/plugins/called"
case ${0##*/} in
bridge) change='del(.hairpinMode)' ;;
ptp) change='.kind = "ptp"' ;;
esac
jq --arg socket "$own/startup.sock" ".socket = \$socket | $change" | "$PEERS/scon-cni"
