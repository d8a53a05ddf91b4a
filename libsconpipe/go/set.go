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

// sockets holds the sockets in the set, by number.
var sockets sync.Map

// theSet holds all sockets of the process. One goroutine waits for it until the process
// ends.
var theSet = sync.OnceValues(func() (C.int, error) {
	set, err := C.pd_epoll_create(1)
	if set < 0 {
		return -1, fmt.Errorf("make a set of sockets: %w", err)
	}
	go watch(set)
	return set, nil
})

// event is an entry of pd_epoll_wait.
func event(events C.uint32_t, sid C.int) C.struct_epoll_event { return C.event(events, sid) }

func watch(set C.int) {
	var events [64]C.struct_epoll_event
	for {
		n, err := C.pd_epoll_wait(set, &events[0], C.int(len(events)), -1)
		if n < 0 && !errors.Is(err, syscall.EINTR) {
			panic(fmt.Sprintf("sconpipe: wait for the set of sockets: %v", err)) // it is never closed
		}
		for i := range max(n, 0) {
			// A socket that was closed meanwhile is no longer in the map; a new one with
			// its number is woken without need.
			if s, ok := sockets.Load(C.sid_of(&events[i])); ok {
				s.(*socket).wake()
			}
		}
	}
}
