//go:build cgo

package sconpipe

/*
#include <sconpipe.h>

static struct epoll_event event(uint32_t events, int sid)
{
	return (struct epoll_event){ .events = events, .data.fd = sid };
}

static int sid_of(const struct epoll_event *e)
{
	return e->data.fd;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// sockets that are in the set, by their numbers.
var sockets sync.Map

// theSet is that of all sockets of the process. A goroutine waits for it as long
// as the process lives.
var theSet = sync.OnceValues(func() (C.int, error) {
	set, err := C.pd_epoll_create(1)
	if set < 0 {
		return -1, fmt.Errorf("make a set of sockets: %w", err)
	}
	go watch(set)
	return set, nil
})

// event is what the set is asked for.
func event(events C.uint32_t, sid C.int) C.struct_epoll_event { return C.event(events, sid) }

func watch(set C.int) {
	var events [64]C.struct_epoll_event
	for {
		n, err := C.pd_epoll_wait(set, &events[0], C.int(len(events)), -1)
		if n < 0 && !errors.Is(err, syscall.EINTR) {
			panic(fmt.Sprintf("sconpipe: wait for the set of sockets: %v", err)) // it is never closed
		}
		for i := range max(n, 0) {
			// Who was closed meanwhile has left; who has its number looks in vain.
			if s, ok := sockets.Load(C.sid_of(&events[i])); ok {
				s.(*socket).tell()
			}
		}
	}
}
