#!/bin/sh
# CNI's plugin bridge or ptp, whichever name this file is called by, made of scon-cni. Lists
# have the same keys, except kind, and hairpinMode, which scon-cni refuses.
case ${0##*/} in
bridge) change='del(.hairpinMode)' ;;
ptp) change='.kind = "ptp"' ;;
esac
jq "$change" | "$PEERS/scon-cni"
