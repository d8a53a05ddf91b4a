package express

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// unannounced are the connections whose end the kernel does not announce: it
// prepares a connection for that when it begins, and with the usual setting of
// nf_conntrack_events only if somebody listens then. So those that are older
// than the daemon have to be asked for.
type unannounced struct {
	every   bool // the setting is 0: no end is announced
	ids     map[uint32]struct{}
	waiting []*contable.Conentry // in the order in which they are asked for, again and again
	// doubted are those whose end may have been announced in a message that was
	// lost. They come first, and once.
	doubted []*contable.Conentry
}

// askedAtOnce bounds the questions between two beats: 5 ms or so.
const askedAtOnce = 200

// findUnannounced lists what is there when the daemon has begun to listen.
func (d *Daemon) findUnannounced() error {
	setting, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_events")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading conntrack's settings: %w", err)
	}
	d.unannounced.every = strings.TrimSpace(string(setting)) == "0"
	d.unannounced.ids = make(map[uint32]struct{})
	return d.ct.Dump(func(c conntrack.Conn) { d.unannounced.ids[c.ID] = struct{}{} })
}

// add takes a new Conentry if its end would not be announced, or if conntrack may
// begin to see it.
func (u *unannounced) add(e *contable.Conentry) {
	if _, old := u.ids[e.Conn.ID]; old || u.every || e.Untracked {
		u.waiting = append(u.waiting, e)
	}
}

// doubt takes every Conentry that there is.
func (u *unannounced) doubt(t *contable.Table) {
	u.doubted = make([]*contable.Conentry, 0, t.Len())
	t.All(func(e *contable.Conentry) { u.doubted = append(u.doubted, e) })
}

// turn takes those whose turn it is: once and, to be added again, the others.
// Those that are gone are left out.
func (u *unannounced) turn(isLive func(*contable.Conentry) bool) (once, others []*contable.Conentry) {
	for ; len(u.doubted) > 0 && len(once) < askedAtOnce; u.doubted = u.doubted[1:] {
		if isLive(u.doubted[0]) {
			once = append(once, u.doubted[0])
		}
	}
	for ; len(u.waiting) > 0 && len(once)+len(others) < askedAtOnce; u.waiting = u.waiting[1:] {
		if isLive(u.waiting[0]) {
			others = append(others, u.waiting[0])
		}
	}
	return once, others
}

// askUnannounced asks conntrack about those whose turn it is.
func (d *Daemon) askUnannounced(now time.Time) {
	u := &d.unannounced
	isLive := func(e *contable.Conentry) bool { return d.table.Lookup(e.Conn.Orig) == e }
	once, others := u.turn(isLive)
	for _, e := range once {
		d.confirm(e, now)
	}
	for _, e := range others {
		d.confirm(e, now)
		if isLive(e) {
			u.waiting = append(u.waiting, e)
		}
	}
}
