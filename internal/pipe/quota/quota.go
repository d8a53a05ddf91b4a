// Package quota bounds the share of the broker's resources that an owner can take, and
// schedules waiting owners round-robin.
//
// An owner is a container, identified by its network namespace and its cgroup. Each of the two
// has an account, and an owner has to stay within the limits of both: a process that creates
// network namespaces stays in its cgroup. All processes whose cgroup cannot be determined
// share one account with a lower limit.
package quota

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Owner is the container that a process belongs to.
type Owner struct {
	Netns  uint64 // the kernel's cookie of its network namespace
	Cgroup string // as Cgroup returns it; "": not determined
}

// Account is one of an owner's two accounts; the other fields are zero.
type Account struct {
	netns  uint64
	cgroup string
	unsure bool // shared by all owners whose cgroup is not determined
}

func (o Owner) accounts() [2]Account {
	second := Account{cgroup: o.Cgroup}
	if o.Cgroup == "" {
		second = Account{unsure: true}
	}
	return [2]Account{{netns: o.Netns}, second}
}

// Account returns the account by which a queue distinguishes owners: that of the cgroup. The
// root cgroup has no container, so its processes are distinguished by network namespace.
func (o Owner) Account() Account {
	all := o.accounts()
	if o.Cgroup == "/" {
		return all[0]
	}
	return all[1]
}

// Resource is a limited resource.
type Resource int

const (
	Processes Resource = iota // connected to the broker
	Names                     // bound
	Files                     // open in the broker
	Pending                   // connections not yet accepted
	Memory                    // bytes of rings
	resources
)

var resourceNames = [resources]string{"processes", "names", "files", "pending", "memory"}

func (r Resource) String() string { return resourceNames[r] }

// errnos are the errors that a client gets: those of the corresponding system calls.
var errnos = [resources]unix.Errno{unix.EAGAIN, unix.EMFILE, unix.EMFILE, unix.ENOBUFS, unix.ENOBUFS}

// Totals are the amounts of each resource.
type Totals [resources]int64

// Exceeded is the error of a Take that was refused. It wraps an errno.
type Exceeded struct {
	Resource Resource
	Used     int64 // by the account
	Limit    int64 // of the account at that time
}

func (e *Exceeded) Error() string {
	return fmt.Sprintf("the container uses %d %s of %d that it may use now: %v", e.Used, e.Resource, e.Limit, errnos[e.Resource])
}

func (e *Exceeded) Unwrap() error { return errnos[e.Resource] }

// unsureShare divides the limit of the account of all processes whose cgroup is not
// determined.
const unsureShare = 4

// Ledger records the resources that each account has taken.
type Ledger struct {
	totals Totals
	share  int64 // percent

	mu   sync.Mutex // guards used and by
	used Totals
	by   map[Account]*Totals // accounts with resources
}

// NewLedger returns a ledger. An account may take a share, in percent, of the amount that the
// other accounts have left. So an account that has nothing can always take some.
func NewLedger(totals Totals, share int) *Ledger {
	return &Ledger{totals: totals, share: int64(share), by: make(map[Account]*Totals)}
}

// Take takes n units of a resource, all or none. An error is an *Exceeded.
func (l *Ledger) Take(o Owner, r Resource, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range o.accounts() {
		own := int64(0)
		if t := l.by[a]; t != nil {
			own = t[r]
		}
		if limit := l.limit(a, r, own); n > limit-own {
			return &Exceeded{r, own, limit}
		}
	}
	l.add(o, r, n)
	return nil
}

// limit returns the limit of an account that has own units. The lock is held.
func (l *Ledger) limit(a Account, r Resource, own int64) int64 {
	others := l.used[r] - own
	limit := (l.totals[r] - others) * l.share / 100
	if a.unsure {
		limit /= unsureShare
	}
	return limit
}

// Give returns n units.
func (l *Ledger) Give(o Owner, r Resource, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(o, r, -n)
}

// Force records n units that are in use already, regardless of the limit; a negative n returns
// units.
func (l *Ledger) Force(o Owner, r Resource, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(o, r, n)
}

func (l *Ledger) add(o Owner, r Resource, n int64) {
	l.used[r] += n
	for _, a := range o.accounts() {
		t := l.by[a]
		if t == nil {
			t = &Totals{}
			l.by[a] = t
		}
		if t[r] += n; *t == (Totals{}) {
			delete(l.by, a)
		}
	}
}

// Used returns the units of a resource that all owners have taken.
func (l *Ledger) Used(r Resource) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used[r]
}
