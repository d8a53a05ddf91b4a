// Package liberal deals with TCP connections of which conntrack accepts every sequence
// number, after express has ended: those that went express, those that conntrack has not
// seen begin, and those of flowtables. It works on the network namespace of the calling
// thread.
package liberal

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Modes of End.
const (
	Keep    = "keep"
	Restore = "restore" // conntrack judges them again
	Delete  = "delete"  // conntrack forgets them
)

// Outcomes of a connection.
const (
	Kept     = "kept"
	Restored = "restored"
	Deleted  = "deleted"
	Lost     = "lost" // conntrack forgot it against the will of Restore
)

// Conn is a connection that was liberal.
type Conn struct {
	conntrack.Tuple
	Outcome string
	Reason  string // why it was not restored, if that was wanted
}

// End deals with all liberal connections. progress is told how many of them are dealt
// with.
func End(mode string, progress func(done, total int)) ([]Conn, error) {
	ct, err := conntrack.OpenRenewer()
	if err != nil {
		return nil, err
	}
	defer ct.Close()
	w := &work{ct: ct, progress: progress}
	err = ct.DumpEntries(func(e conntrack.Entry) {
		if e.Liberal() {
			w.all = append(w.all, &conn{Conn: Conn{Tuple: e.Orig, Outcome: Kept}, entry: e})
		}
	})
	switch {
	case err != nil:
		return nil, err
	case mode == Restore:
		err = w.restore()
	case mode == Delete:
		err = w.remove()
	}
	var listed []Conn
	for _, c := range w.all {
		if !c.over {
			listed = append(listed, c.Conn)
		}
	}
	return listed, err
}

// conn is a connection that is being dealt with.
type conn struct {
	Conn
	entry conntrack.Entry
	over  bool // it has ended by itself

	// Both directions were within the windows at fitted, and since asked conntrack is
	// asked whether they still are.
	fitted  time.Time
	asked   bool
	seen    bool // a packet of any direction was within the windows
	renewed time.Time
}

// work is one call of End.
type work struct {
	ct       *conntrack.Renewer
	all      []*conn
	progress func(done, total int)
}

func (w *work) remove() error {
	for i, c := range w.all {
		w.progress(i, len(w.all))
		if err := w.ct.Delete(c.entry.Conn); err != nil && !errors.Is(err, conntrack.ErrNotFound) {
			return err
		}
		c.Outcome = Deleted
	}
	return nil
}

// How restored connections are watched.
const (
	// patience is how long packets of both directions may take.
	patience = 10 * time.Second
	// settle is how long what was under way may take to arrive.
	settle = time.Second
	// again is how long a connection may take until its entry is created once more. Where
	// the windows come from packets that do not fit together, none fits afterwards, and
	// conntrack does not correct them.
	again = 3 * time.Second
	// look is the time between two looks, which take at most a fifth of the time.
	look = 100 * time.Millisecond
)

// restore creates the entries again, without windows. Conntrack takes these from the
// packets that follow: from the first one of each direction, which may be one that was
// sent again, or is one of many. It goes on to accept everything meanwhile. When packets
// of both directions were within the windows, and were so again after what was under way
// has arrived, the windows are the connection's own, and conntrack judges by them.
func (w *work) restore() error {
	chosen, err := w.choose()
	if err != nil || len(chosen) == 0 {
		return err
	}
	if chosen, err = w.renew(chosen); err != nil {
		return err
	}
	for begin := time.Now(); len(chosen) > 0 && time.Since(begin) < patience; {
		w.progress(len(w.all)-len(chosen), len(w.all))
		looked := time.Now()
		if chosen, err = w.judge(chosen); err != nil {
			return err
		}
		if chosen, err = w.renewStuck(chosen); err != nil {
			return err
		}
		time.Sleep(max(look, 4*time.Since(looked)))
	}
	for _, c := range chosen {
		c.Reason = "no packets came; conntrack takes the windows from them"
		if c.seen {
			c.Reason = "conntrack has not seen both directions within the windows"
		}
	}
	return nil
}

// choose returns the connections whose entries can be created again, and sets the
// reason of the others.
func (w *work) choose() (chosen []*conn, err error) {
	expecting, err := w.ct.Expecting()
	if err != nil {
		return nil, err
	}
	bridged := bridgeRules()
	tried := make(map[bool]error) // by whether it is IPv6
	for _, c := range w.all {
		ipv6 := c.Tuple.Src.Addr().Is6()
		if _, ok := tried[ipv6]; !ok && c.entry.Obstacle == "" {
			tried[ipv6] = w.ct.Try(ipv6)
		}
		switch {
		case c.entry.Obstacle != "":
			c.Reason = c.entry.Obstacle
		case expecting[c.Tuple]:
			c.Reason = "conntrack expects other connections of it"
		case bridged != "" && c.entry.Reply == c.Tuple.Reverse():
			c.Reason = bridged
		case tried[ipv6] != nil:
			c.Reason = fmt.Sprintf("the kernel does not create its entry: %v", tried[ipv6])
		default:
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// bridgeRules says why connections without translation may pass rules of nftables'
// family bridge, at whose hooks conntrack looks up packets as well, "" if there are none.
func bridgeRules() (reason string) {
	sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err == nil {
		defer sock.Close()
		err = sock.Request(nlmsg.Request{
			Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: unix.NLM_F_DUMP,
			Data: []byte{unix.NFPROTO_BRIDGE, unix.NFNETLINK_V0, 0, 0},
		}, func(nlmsg.Message) { reason = "rules of the family bridge may judge it" })
	}
	if err != nil {
		return fmt.Sprintf("list rules of the family bridge: %v", err)
	}
	return reason
}

// renew creates the entries of connections again, and returns those of which it did.
func (w *work) renew(chosen []*conn) (renewed []*conn, err error) {
	g, err := openGuard(chosen)
	if err != nil {
		for _, c := range chosen {
			c.Reason = err.Error()
		}
		return nil, nil
	}
	defer g.Close()
	var left []*conn
	for _, c := range chosen {
		w.progress(len(w.all)-len(chosen), len(w.all))
		e, err := w.ct.Entry(c.Tuple) // what has changed since, such as the mark
		if err == nil && e.ID == c.entry.ID && e.Liberal() && e.Obstacle == "" {
			err = w.ct.Renew(e)
		} else if err == nil {
			err = conntrack.ErrNotFound
		}
		switch {
		case err == nil:
			c.fitted, c.asked, c.renewed = time.Time{}, false, time.Now()
			renewed = append(renewed, c)
		case errors.Is(err, conntrack.ErrNotFound):
			c.over = true
		case errors.Is(err, conntrack.ErrLost):
			c.Outcome, c.Reason = Lost, err.Error()
		case errors.Is(err, conntrack.ErrFull):
			left = append(left, c)
		default:
			c.Reason = err.Error()
		}
	}
	for _, c := range left {
		c.Reason = fmt.Sprintf("%v: %d connections are left as they are", conntrack.ErrFull, len(left))
	}
	return renewed, nil
}

// renewStuck creates the entries of those connections again whose windows do not fit, and
// returns all but those of which it could not.
func (w *work) renewStuck(chosen []*conn) (left []*conn, err error) {
	var stuck []*conn
	for _, c := range chosen {
		if c.seen && time.Since(c.renewed) > again {
			stuck = append(stuck, c)
		} else {
			left = append(left, c)
		}
	}
	if len(stuck) == 0 {
		return left, nil
	}
	stuck, err = w.renew(stuck)
	return append(left, stuck...), err
}

// judge has conntrack judge those connections whose windows it has, and returns the
// others.
func (w *work) judge(chosen []*conn) (left []*conn, err error) {
	now := make(map[conntrack.Tuple]conntrack.Conn)
	if err := w.ct.DumpEntries(func(e conntrack.Entry) { now[e.Orig] = e.Conn }); err != nil {
		return chosen, err
	}
	for _, c := range chosen {
		is, ok := now[c.Tuple]
		if !ok || !is.Liberal() {
			c.over = true
			continue
		}
		c.entry.ID = is.ID
		both, any := is.SeenInWindow()
		c.seen = c.seen || any
		var err error
		switch {
		case !c.fitted.IsZero() && !c.asked:
			if time.Since(c.fitted) >= settle {
				c.asked = true
				err = w.ct.UpdateTCP(is, conntrack.TCPUpdate{})
			}
		case both && c.asked:
			if err = w.ct.JudgeTCP(is); err == nil {
				c.Outcome = Restored
				continue
			}
		case both:
			c.fitted = time.Now()
		}
		if errors.Is(err, conntrack.ErrNotFound) {
			c.over = true
			continue
		}
		if err != nil {
			return chosen, err
		}
		left = append(left, c)
	}
	return left, nil
}
