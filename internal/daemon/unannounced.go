package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/scon-project/scon/internal/conntrack"
	"github.com/scon-project/scon/internal/contable"
)

// unannounced are the connections whose end the kernel does not announce: it
// prepares a connection for that when it begins, and with the usual setting of
// nf_conntrack_events only if somebody listens then. So those that are older
// than the daemon have to be asked for.
type unannounced struct {
	every   bool // the setting is 0: no end is announced
	ids     map[uint32]struct{}
	waiting []*contable.Conentry // in the order in which they are asked for
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

// add takes a new Conentry if its end would not be announced.
func (u *unannounced) add(e *contable.Conentry) {
	if _, old := u.ids[e.Conn.ID]; old || u.every {
		u.waiting = append(u.waiting, e)
	}
}

// askUnannounced asks conntrack about those whose turn it is.
func (d *Daemon) askUnannounced(now time.Time) {
	u := &d.unannounced
	for range min(len(u.waiting), askedAtOnce) {
		e := u.waiting[0]
		u.waiting = u.waiting[1:]
		d.confirm(e, now)
		if d.table.Lookup(e.Conn.Orig) == e {
			u.waiting = append(u.waiting, e)
		}
	}
}
