package composer

import (
	"errors"
	"log/slog"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// Where conntrack accepts TCP whatever its sequence numbers, a program composes connections
// when their second packet leaves, and their FINs go express, too. The composer says of which
// containers, tells conntrack of connections that have ended, and takes up those that last.

// earlyInterval is the time between two looks while there are early Conentries.
const earlyInterval = 20 * time.Millisecond

// Programs compose connections: *datapath.Datapath.
type Programs interface {
	// OpenEarly loads what does. It may be called again.
	OpenEarly() error
	// Ring returns what is set aside for the container at a port, nil if there is none.
	Ring(port int) *datapath.Spares
	// SetEarlyWay says how connections may be composed.
	SetEarlyWay(datapath.EarlyWay)
	// SetEarly says whether connections of a container may be composed, and, if outside,
	// whether those by an uplink may.
	SetEarly(ifindex int, outside, may bool) error
}

// Early decides of which containers programs compose connections, and what becomes of these.
type Early struct {
	*Composer
	programs Programs
	log      *slog.Logger
	due      *time.Timer
	isDue    bool
	uplinks  map[int]bool
	failed   error // why OpenEarly failed
	why      string
	// How long conntrack keeps a connection of which one end, or both, have sent their last
	// data.
	closeWait, timeWait time.Duration
}

// NewEarly returns an Early that lets programs compose nothing.
func NewEarly(c *Composer, p Programs, log *slog.Logger) *Early {
	e := &Early{Composer: c, programs: p, log: log, due: time.NewTimer(time.Hour), uplinks: make(map[int]bool), why: judgedByConntrack}
	e.due.Stop()
	return e
}

// Why returns why short connections stay regular, "" if they do not.
func (e *Early) Why() string { return e.why }

// Due delivers the time when Sweep has to be called.
func (e *Early) Due() <-chan time.Time { return e.due.C }

// Follow lets programs compose connections of containers at hooked ports by uplinks if
// conntrack is liberal and no rule judges single packets.
func (e *Early) Follow(liberal bool, ports, uplinks []int) {
	way, why := e.way(liberal)
	if why != e.why {
		e.log.Debug("short connections", "regular", why)
		e.why = why
	}
	if way == datapath.EarlyOff {
		ports, uplinks = nil, nil
	}
	e.programs.SetEarlyWay(way)
	e.setUplinks(uplinks)
	wanted := make(map[int]int, len(ports))
	for _, port := range ports {
		if bridge := e.bridgeOf(port); bridge != 0 {
			wanted[port] = bridge
		}
	}
	e.table.EarlyPorts(func(port int) {
		if bridge, _ := e.table.HasEarly(port); wanted[port] != bridge {
			e.Flush(port)
		}
	})
	for port, bridge := range wanted {
		ring := e.programs.Ring(port)
		if _, has := e.table.HasEarly(port); has || ring == nil {
			continue
		}
		e.table.OpenEarly(port, bridge, ring, e.lease)
		e.set(port, false, true)
	}
}

// judges reports whether a rule may judge single packets of a connection of TCP, those with
// flags among them.
func (e *Early) judges(flags uint8) bool {
	if !e.rules.Judges() {
		return false
	}
	any := conntrack.Conn{Orig: conntrack.Tuple{Proto: protoTCP}, Reply: conntrack.Tuple{Proto: protoTCP}}
	_, touched := e.rules.Touches(rules.Conn{Conn: any, Flags: flags})
	return touched
}

// Why short connections stay regular.
const (
	judgedByConntrack = "conntrack judges sequence numbers (nf_conntrack_tcp_be_liberal is 0)"
	judgedByRule      = "a rule judges single packets of TCP, or those with FIN"
	judgedByQueue     = "a queue of a device asks what express packets lack"
	pathMTUs          = "path MTUs count for what this host forwards (ip_forward_use_pmtu)"
	shortTimeouts     = "conntrack's timeouts of TCP are shorter than two leases"
)

// way returns how programs may compose connections, and why not.
func (e *Early) way(liberal bool) (way datapath.EarlyWay, why string) {
	switch {
	case !liberal:
		return datapath.EarlyOff, judgedByConntrack
	case e.leases.limits.TCP < 2*e.lease:
		return datapath.EarlyOff, shortTimeouts
	case e.leases.limits.PathMTU:
		return datapath.EarlyOff, pathMTUs
	case e.ports.Asks().At != "":
		return datapath.EarlyOff, judgedByQueue
	case e.judges(rules.FIN):
		return datapath.EarlyOff, judgedByRule
	}
	if err := e.open(); err != nil {
		return datapath.EarlyOff, err.Error()
	}
	if e.judges(rules.FIN | rules.SYN) {
		return datapath.EarlyOn, ""
	}
	return datapath.EarlyFromSecond, ""
}

// bridgeOf returns the only device by which IP sees packets of the container at a port come,
// 0 if programs may not compose its connections.
func (e *Early) bridgeOf(port int) int {
	p := e.ports.Port(port)
	if p == nil || e.IsPaused(port) || len(e.ports.Inside(p)) != 1 {
		return 0
	}
	bridge, _ := p.Inside()
	return bridge
}

// open loads the program, and reads conntrack's timeouts. What fails once fails again.
func (e *Early) open() error {
	if e.failed == nil {
		e.failed = e.programs.OpenEarly()
	}
	if e.failed != nil {
		return e.failed
	}
	limits, err := readClosing()
	if err == nil {
		e.closeWait, e.timeWait = limits[0], limits[1]
	}
	return err
}

func readClosing() (limits [2]time.Duration, err error) {
	for i, name := range [...]string{"close_wait", "time_wait"} {
		if limits[i], err = readTimeout(name); err != nil {
			return limits, err
		}
	}
	return limits, nil
}

func (e *Early) setUplinks(uplinks []int) {
	now := make(map[int]bool, len(uplinks))
	for _, u := range uplinks {
		now[u] = true
		e.set(u, true, true) // again: it may have been unhooked meanwhile
	}
	for u := range e.uplinks {
		if !now[u] {
			e.set(u, true, false)
		}
	}
	e.uplinks = now
}

func (e *Early) set(ifindex int, outside, may bool) {
	if err := e.programs.SetEarly(ifindex, outside, may); err != nil {
		e.log.Error("telling the programs of which containers they may compose connections", "error", err)
	}
}

// Flush removes the early Conentries of the container at a port, and counts them. There are no
// others until Follow is called.
func (e *Early) Flush(port int) (n int) {
	e.set(port, false, false)
	all := e.table.CloseEarly(port, time.Now())
	e.end(all)
	return len(all)
}

// FlushAll does so for all containers.
func (e *Early) FlushAll() (n int) {
	e.table.EarlyPorts(func(port int) { n += e.Flush(port) })
	return n
}

// Refill sets slots aside in place of those that were taken. Those in use, which the programs
// write, are looked at for lack of others only, or if no Sweep is due.
func (e *Early) Refill(now time.Time) {
	if !e.table.RefillEarly(now) || !e.isDue {
		e.Sweep(now)
	}
}

// Sweep does what is due about early Conentries, and sets slots aside for others.
func (e *Early) Sweep(now time.Time) {
	due, any := e.table.DueEarly(now)
	var last, over []contable.Early
	for _, x := range due {
		if x.State == contable.EarlyOpen {
			last = append(last, x)
		} else {
			over = append(over, x)
		}
	}
	began := time.Now()
	e.end(over)
	payers{&e.time}.spend(time.Since(began), false)
	e.takeUp(last, now)
	e.table.RefillEarly(now)
	if e.isDue = any; any {
		e.due.Reset(earlyInterval)
	}
}

// mostTries is how often conntrack is told of the end of a connection in vain: for a second.
const mostTries = int(time.Second / earlyInterval)

// end has packets of early Conentries go regular, after conntrack has been told of what it has
// not seen. While it cannot be told of FINs, the next connection with the same addresses and
// ports would be an established one for it: the programs let none begin.
func (e *Early) end(all []contable.Early) {
	failed := e.tell(all)
	for _, x := range all {
		if failed[x.State] && x.HasFINs() && x.Tries < mostTries {
			e.table.CloseUntold(x)
		} else {
			e.table.EndEarly(x)
		}
	}
}

// tell tells conntrack of what it has not seen of early Conentries. It returns the states of
// those of which it could not.
func (e *Early) tell(all []contable.Early) (failed map[contable.EarlyState]bool) {
	failed = make(map[contable.EarlyState]bool)
	told := map[contable.EarlyState][]conntrack.Tuple{}
	for _, x := range all {
		told[x.State] = append(told[x.State], e.table.EarlyTuple(x))
	}
	for state, update := range map[contable.EarlyState]conntrack.TCPUpdate{
		contable.EarlyOpen:      {},
		contable.EarlyClosed:    {},
		contable.EarlyHalfEnded: {State: conntrack.TCPCloseWait, Timeout: e.closeWait},
		contable.EarlyEnded:     {State: conntrack.TCPTimeWait, Timeout: e.timeWait},
	} {
		if err := e.ct.UpdateAll(told[state], update); err != nil {
			e.log.Error("telling conntrack of short connections", "error", err)
			failed[state] = true
		}
	}
	return failed
}

// takeUp makes early Conentries that last ones like others, and ends those that it cannot.
func (e *Early) takeUp(all []contable.Early, now time.Time) {
	began := time.Now()
	var asked []question
	var admitted, refused []contable.Early
	var tuples []conntrack.Tuple
	for _, x := range all {
		p := e.ports.Port(x.Port())
		if p == nil {
			refused = append(refused, x)
			continue
		}
		payers, why := e.admit(p, now)
		if why != "" {
			e.refuse(p.Index, why)
			refused = append(refused, x)
			continue
		}
		asked = append(asked, question{at: p, payers: payers})
		admitted, tuples = append(admitted, x), append(tuples, e.table.EarlyTuple(x))
	}
	e.end(refused)
	for i, answer := range e.ct.MakeLiberal(tuples) {
		q := asked[i]
		q.why = e.takeUpOne(q.at, admitted[i], tuples[i], answer, now)
		e.conclude(q, time.Since(began)/time.Duration(len(asked)))
	}
}

func (e *Early) takeUpOne(p *discover.Port, x contable.Early, tuple conntrack.Tuple, answer conntrack.Answer, now time.Time) Refusal {
	conn, why := answer.Conn, ConntrackError
	if errors.Is(answer.Err, conntrack.ErrNotFound) {
		why = Untracked
	}
	if answer.Err == nil {
		why = e.Unfit(conn)
	}
	if why == "" && e.keepByRule(subject{port: p.Index, initiator: tuple == conn.Orig}, conn) {
		why = PerPacketRule
	}
	if why != "" || !conn.Liberal() {
		e.table.EndEarly(x)
		return why
	}
	c, err := e.table.TakeUp(x, conn, now)
	switch {
	case errors.Is(err, contable.ErrEnding):
		e.table.PutOff(x)
		return ""
	case err != nil:
		e.table.EndEarly(x)
		return tableRefusal(err)
	}
	e.composed++
	e.placed(c)
	e.decideLease(c, conn)
	return ""
}

// Adopt does what is due about the early Conentries that an earlier daemon has left, before
// Composer.Adopt makes those that last ones like others.
func (e *Early) Adopt() {
	if limits, err := readClosing(); err == nil {
		e.closeWait, e.timeWait = limits[0], limits[1]
	}
	e.tell(e.table.LeftEarly())
}
