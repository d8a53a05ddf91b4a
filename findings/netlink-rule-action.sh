#!/bin/sh
# github.com/vishvananda/netlink: a routing rule that drops is read as one that looks into a table.
#
# Seen with v1.3.1 on Linux 6.18.44: RuleList() does not read what a routing rule does. "blackhole" and
# "l3mdev" have the zero Type and table 0, as a look-up has, and print as one. RuleAdd() makes of
# that a look-up, for which the kernel chooses a table that is empty: packets that the rule dropped
# go on to the next one. So a program that moves rules, by reading, deleting and adding them,
# takes down a policy, and none of its calls fails.
#
# What it taught: two lists of routing rules by this package can be equal where the rules differ.
# The differential test compares the kernel's messages before and after a case
# (test/differential, TestStateOfRules), and SCON itself reads rules from those alone.
#
# Run as root, with Go; it makes a network namespace of its own. Exit status 1: the package behaves
# otherwise.
set -eu

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding

go 1.24

require github.com/vishvananda/netlink v1.3.1
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"log"

	"github.com/vishvananda/netlink"
)

// Moves each routing rule from 51 to 59 by 10.
func main() {
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range rules {
		if r.Priority < 51 || r.Priority > 59 {
			continue
		}
		fmt.Println(r)
		if err := netlink.RuleDel(&r); err != nil {
			log.Fatal(err)
		}
		r.Priority += 10
		if err := netlink.RuleAdd(&r); err != nil {
			log.Fatal(err)
		}
	}
}
END
(
	export GOFLAGS=-mod=mod GOPATH="$dir/go" GOWORK=off
	go mod tidy 2>log && go build -o move . 2>log || { cat log >&2; exit 2; }
)
out=$(unshare --net sh -eu <<'END'
ip rule add priority 51 from 10.5.0.0/16 blackhole
ip rule add priority 52 from 10.6.0.0/16 l3mdev
ip rule add priority 53 from 10.7.0.0/16 lookup 7
./move
ip rule show | grep -E '^(5|6)' | tr '\t' ' '
END
)
echo "$out"
[ "$out" = 'ip rule 51: from 10.5.0.0/16 to all table 0 
ip rule 52: from 10.6.0.0/16 to all table 0 
ip rule 53: from 10.7.0.0/16 to all table 7 
61: from 10.5.0.0/16 lookup 1
62: from 10.6.0.0/16 lookup 2
63: from 10.7.0.0/16 lookup 7' ]
