package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

const (
	// watchBuffer is the kernel's receive buffer in bytes: about ten thousand
	// connections that end at once.
	watchBuffer = 16 << 20
	// watchQueue is how many connections wait for the receiver of the channel
	// before the kernel's buffer fills.
	watchQueue = 1024
)

// Destroyed is a connection that has left the table.
type Destroyed struct {
	Orig, Reply Tuple
	ID          uint32 // Conn.ID: a new connection may have the same tuples
	// Overrun means that any number of connections may have left unseen; the
	// other fields are empty.
	Overrun bool
}

// WatchDestroy follows connections that leave the table of the calling
// thread's namespace, from when it returns until ctx ends. A slow receiver
// gets an Overrun; it does not block the kernel. The channel is closed after
// ctx has ended, or when the socket fails.
//
// The kernel may not announce the end of connections that are older than the
// first listener: it prepares them for that when they begin.
//
// filter is a loaded eBPF socket filter, so that messages of no interest do
// not wake the process; 0 passes all.
func WatchDestroy(ctx context.Context, filter int) (<-chan Destroyed, error) {
	return watchDestroy(ctx, filter, watchBuffer)
}

// watchDestroy is WatchDestroy with a receive buffer of that size in bytes.
func watchDestroy(ctx context.Context, filter, buffer int) (<-chan Destroyed, error) {
	sock, err := nlmsg.Open(nlmsg.Options{
		Family:  unix.NETLINK_NETFILTER,
		Groups:  []uint32{unix.NFNLGRP_CONNTRACK_DESTROY},
		Program: filter,
		Buffer:  buffer,
	})
	if err != nil {
		return nil, fmt.Errorf("watch connections end: %w", err)
	}
	events := make(chan Destroyed, watchQueue)
	stop := context.AfterFunc(ctx, func() { sock.Close() })
	go func() {
		defer close(events)
		defer sock.Close()
		defer stop()
		send := func(d Destroyed) {
			select {
			case events <- d:
			case <-ctx.Done():
			}
		}
		parse := func(m nlmsg.Message) {
			if d, ok := parseDestroyed(m.Data); ok {
				send(d)
			}
		}
		for ctx.Err() == nil {
			switch err := sock.Receive(parse); {
			case errors.Is(err, nlmsg.ErrOverrun):
				send(Destroyed{Overrun: true})
			case err != nil:
				return
			}
		}
	}()
	return events, nil
}

// parseDestroyed parses the fields that are needed of a message, which begins
// with struct nfgenmsg.
func parseDestroyed(b []byte) (d Destroyed, ok bool) {
	if len(b) < nlmsg.SizeofNfgenmsg {
		return Destroyed{}, false
	}
	for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
		switch typ {
		case attrTupleOrig:
			d.Orig = parseTuple(data)
		case attrTupleReply:
			d.Reply = parseTuple(data)
		case attrID:
			d.ID = be32(data)
		}
	}
	return d, d.Orig.whole() && d.Reply.whole()
}
