#!/bin/sh
# github.com/google/nftables: a rule that is read has fewer expressions than the kernel's.
#
# Seen with v0.3.0: GetRules() leaves out the expressions that the package has no type for, among
# them rt, socket, xfrm, tproxy and dup, and reports no error. A rule that was read and is
# added again is another rule: of "tcp dport 80 tproxy to :8080 accept" is left what accepts; of
# "rt mtu < 1000 drop" is left the comparison, of a register that nothing has loaded, which the
# kernel refuses (ENODATA).
#
# What it taught: a list of known expressions does not say that these are all. SCON compiles the
# expressions of netlink's messages, takes one that it does not know for a judgement of single packets
# (internal/express/rules, TestNFTPerPacket), and compares its own rules by what the kernel stores
# (internal/startup, TestTamperedRuleset).
#
# Run as root, with nft and Go; it makes a network namespace of its own. Exit status 1: the package
# behaves otherwise.
set -eu

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'END'
module finding

go 1.24

require github.com/google/nftables v0.3.0
END
cat >main.go <<'END'
package main

import (
	"errors"
	"fmt"
	"log"
	"syscall"

	"github.com/google/nftables"
)

// Copies the rules of chain "from" to chain "to".
func main() {
	c, err := nftables.New()
	if err != nil {
		log.Fatal(err)
	}
	table := &nftables.Table{Name: "t", Family: nftables.TableFamilyIPv4}
	rules, err := c.GetRules(table, &nftables.Chain{Name: "from", Table: table})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "to", Table: table}, Exprs: r.Exprs})
		if err := c.Flush(); err != nil {
			fmt.Println("refused:", errors.Is(err, syscall.ENODATA))
		}
	}
}
END
(
	export GOFLAGS=-mod=mod GOPATH="$dir/go" GOWORK=off
	go mod tidy 2>log && go build -o copy . 2>log || { cat log >&2; exit 2; }
)
out=$(unshare --net sh -eu <<'END'
nft -f - <<'RULES'
table ip t {
	chain from {
		type filter hook prerouting priority -150
		tcp dport 80 tproxy to :8080 accept
		tcp dport 81 meta mark 7 accept
	}
	chain to { type filter hook prerouting priority -149; }
}
RULES
./copy
nft --stateless list chain ip t to | grep accept$
nft -f - <<'RULES'
flush ruleset
table ip t {
	chain from { type filter hook forward priority 0; rt mtu < 1000 drop; }
	chain to { type filter hook forward priority 1; }
}
RULES
./copy
END
)
echo "$out"
[ "$out" = '		tcp dport 80 accept
		tcp dport 81 meta mark 0x00000007 accept
refused: true' ]
