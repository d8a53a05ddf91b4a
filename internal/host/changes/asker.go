package changes

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// asker is a goroutine that asks rtnetlink when it is woken.
type asker struct {
	ask  *nlmsg.Requests
	wake chan struct{} // closed at the end
	done chan struct{} // closed when the goroutine has ended

	mu    sync.Mutex // guards what the goroutine is told, and ended
	ended bool
}

func openAsker() (*asker, error) {
	ask, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &asker{ask: ask, wake: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

// run runs the goroutine, which has to return when wake is closed.
func (a *asker) run(fn func()) {
	go func() {
		defer close(a.done)
		fn()
	}()
}

// tell calls fn with the lock held, and wakes the goroutine, unless it is to end.
func (a *asker) tell(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	fn()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// close ends the goroutine, and waits for it.
func (a *asker) close() error {
	a.mu.Lock()
	if !a.ended {
		a.ended = true
		close(a.wake)
	}
	a.mu.Unlock()
	<-a.done
	return a.ask.Close()
}
