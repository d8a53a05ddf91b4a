#!/bin/sh
# github.com/vishvananda/netlink: a GRE device over IPv4 without a local address is "ip6gre".
#
# Seen with v1.3.1: Gretun.Type() tells the two kinds of GRE by the local address alone, and one
# that is not set counts as IPv6. "ip link add t type gre remote 10.0.0.2" is valid, and "local" is
# optional for the kernel: it then takes the address of the route to the remote end. The package
# names such a device ip6gre when it reads it, and asks the kernel for a device of that kind when it
# is to make one.
#
# What it taught: the kind that the package derives does not say how a tunnel is carried. SCON looks
# at the type of the link and at its remote address (internal/express/discover, TestTunnelEnds).
#
# Needs Go; run anywhere. Exit status 1: the package behaves otherwise.
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
	"net"

	"github.com/vishvananda/netlink"
)

func main() {
	local, remote := net.IPv4(10, 0, 0, 1), net.IPv4(10, 0, 0, 2)
	fmt.Println("with a local address:", (&netlink.Gretun{Local: local, Remote: remote}).Type())
	fmt.Println("without:", (&netlink.Gretun{Remote: remote}).Type())
}
END
export GOFLAGS=-mod=mod GOPATH="$dir/go" GOWORK=off
go mod tidy 2>/dev/null
out=$(go run .)
echo "$out"
[ "$out" = "with a local address: gre
without: ip6gre" ]
