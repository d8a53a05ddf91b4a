package changes

import (
	"errors"
	"fmt"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// announced is a source that listens to multicast groups.
type announced struct {
	*nlmsg.Socket
	out  *output
	what string // is announced, for logs
	// evaluate returns what a message means, false if it is irrelevant.
	evaluate func(nlmsg.Message) (Event, bool)
	// lost, if not nil, reads again the state that evaluate compares messages
	// with.
	lost func() error
}

func (a *announced) next() error {
	err := a.Receive(func(m nlmsg.Message) {
		if e, ok := a.evaluate(m); ok {
			a.out.emit(e)
		}
	})
	if errors.Is(err, nlmsg.ErrOverrun) {
		a.out.emit(overrun(a.what + " messages were lost"))
		err = nil
		if a.lost != nil {
			err = a.lost()
			// A change between the two is in what was read: its message will be
			// no news, though decisions were made before it.
			a.out.emit(overrun(a.what + " state was read again"))
		}
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", a.what, err)
	}
	return nil
}
