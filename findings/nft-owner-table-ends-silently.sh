#!/bin/sh
# Linux: a table of nftables that belongs to a socket goes with it, and nobody is told.
#
# Seen on Linux 6.18.44 (amd64): a program adds a table with the flag "owner", as firewall
# services do, and closes its socket. The table is gone at once, with its rules if it had any. A
# listener of the group NFNLGRP_NFTABLES hears of its beginning and not of its end, and the
# ruleset's generation (NFT_MSG_GETGEN), by which readers know that they have read it without a
# change, is the same as before: nft_rcv_nl_event() in net/netfilter/nf_tables_api.c releases the
# table without a transaction.
#
# What it taught: neither messages nor the generation tell that the rules are as they were. SCON
# asks whether the owner's table is still there each second where there is one (internal/express/rules,
# "a table has gone with its owner" in docs/safety.md).
#
# Run as root, with Go; it makes a network namespace of its own. Exit status 1: the kernel behaves
# otherwise.
set -eu

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cat >"$dir/go.mod" <<'END'
module owner

go 1.24

require (
	github.com/mdlayher/netlink v1.11.2
	golang.org/x/sys v0.49.0
)
END
cat >"$dir/main.go" <<'END'
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	flagOwner  = 2 // NFT_TABLE_F_OWNER
	groupRules = 7 // NFNLGRP_NFTABLES
)

func main() {
	log.SetFlags(0)
	listener, asker, owner := dial(&netlink.Config{Groups: 1 << (groupRules - 1)}), dial(nil), dial(nil)
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte("owned\x00")}
	flags := netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flagOwner)}
	_, err := owner.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}),
		message(rules(unix.NFT_MSG_NEWTABLE), netlink.Create, []byte{unix.NFPROTO_INET, 0, 0, 0}, name, flags),
		message(unix.NFNL_MSG_BATCH_END, 0, []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}),
	})
	check(err)
	heard := count(listener)
	tables, before := len(ask(asker, unix.NFT_MSG_GETTABLE, netlink.Dump)), generation(asker)

	check(owner.Close())
	heardAfter := count(listener)
	tablesAfter, after := len(ask(asker, unix.NFT_MSG_GETTABLE, netlink.Dump)), generation(asker)

	var kernel unix.Utsname
	check(unix.Uname(&kernel))
	fmt.Printf("Linux %s: %d messages of the beginning, %d of the end; tables: %d, then %d; the generation has changed: %v\n",
		unix.ByteSliceToString(kernel.Release[:]), heard, heardAfter, tables, tablesAfter, before != after)
	if heard == 0 || heardAfter != 0 || tables != 1 || tablesAfter != 0 || before != after {
		os.Exit(1)
	}
}

func dial(c *netlink.Config) *netlink.Conn {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, c)
	check(err)
	return conn
}

func rules(msg uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | msg }

func message(typ uint16, flags netlink.HeaderFlags, header []byte, attributes ...netlink.Attribute) netlink.Message {
	data, err := netlink.MarshalAttributes(attributes)
	check(err)
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | flags}, Data: append(header, data...)}
}

// count counts the messages that come within a second.
func count(c *netlink.Conn) (n int) {
	check(c.SetReadDeadline(time.Now().Add(time.Second)))
	for {
		all, err := c.Receive()
		if err != nil {
			return n
		}
		n += len(all)
	}
}

func ask(c *netlink.Conn, msg uint16, flags netlink.HeaderFlags) []netlink.Message {
	answer, err := c.Execute(message(rules(msg), flags, make([]byte, 4)))
	check(err)
	return answer
}

// generation asks for the number of the ruleset.
func generation(c *netlink.Conn) uint32 {
	attributes, err := netlink.UnmarshalAttributes(ask(c, unix.NFT_MSG_GETGEN, 0)[0].Data[4:])
	check(err)
	for _, a := range attributes {
		if a.Type == unix.NFTA_GEN_ID {
			return binary.BigEndian.Uint32(a.Data)
		}
	}
	log.Fatal("no generation")
	return 0
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
cd "$dir"
export GOFLAGS=-mod=mod GOPATH="$dir/path" GOCACHE="$dir/cache"
go build -o owner . >build.log 2>&1 || {
	cat build.log
	exit 2
}
unshare --net ./owner
