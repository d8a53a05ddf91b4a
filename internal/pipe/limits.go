package pipe

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/quota"
)

// Totals over all owners. The process's RLIMIT_NOFILE bounds files, the settings bound memory.
const (
	mostProcesses = 4096
	mostNames     = 8192
	mostPending   = 8192 // connections not yet accepted
	mostCloses    = 256  // concurrent closes of files that processes have passed, each of which may hang
	mostCalls     = 512  // concurrent calls on processes' sockets, each of which may hang
	mostProofs    = 8192 // concurrent proofs after a change of rules
	mostCrossings = 256  // concurrent proofs under "scon run", in the background of other work
	mostMakings   = 64   // connections in creation after such a proof, each of which has threads that wait in the kernel
	mostAbsences  = 64   // answers within proofPatience that no name listens on a port
)

// Files that the broker opens.
const (
	// reservedFiles are not charged to owners: control connections, spare memory of the
	// engine bpf, TCP connections whose token has not arrived yet.
	reservedFiles = 2560
	// filesOfProcess: its session's socket, its pidfd, the file of a request and those of
	// a reply.
	filesOfProcess = 6
	filesOfName    = 3 // the TCP socket, both ends of the doorbell of the backlog
	filesOfHalf    = 2 // of an end that waits for its other end: its alert and its notice
	filesOfRing    = 2 // a larger ring, until it is mapped
)

// defaultShare is the share of what the others have left that an owner may take, in percent.
const defaultShare = 50

// newLedger returns the ledger of a broker.
func newLedger(o Options) (*quota.Ledger, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	files := int64(min(limit.Cur, 1<<30))
	share := o.Share
	if share == 0 {
		share = defaultShare
	}
	return quota.NewLedger(quota.Totals{
		quota.Processes: mostProcesses, quota.Names: mostNames, quota.Pending: mostPending,
		quota.Files: files - min(reservedFiles, files/2), quota.Memory: o.MemoryLimit,
	}, share), nil
}

// take takes n of a resource for an owner, and counts a refusal. The lock is held.
func (b *Broker) take(o quota.Owner, r quota.Resource, n int64) error {
	err := b.ledger.Take(o, r, n)
	if err != nil {
		b.counts.Refused[r.String()]++
	}
	return err
}

// takeBoth takes amounts of two resources, or nothing. The lock is held.
func (b *Broker) takeBoth(o quota.Owner, r quota.Resource, n int64, files int64) error {
	if err := b.take(o, r, n); err != nil {
		return err
	}
	if err := b.take(o, quota.Files, files); err != nil {
		b.ledger.Give(o, r, n)
		return err
	}
	return nil
}

// filesOfEnd returns the number of files that a new end of a connection takes: TCP socket,
// doorbell, page and rings.
func (e Engine) filesOfEnd() int64 {
	switch e {
	case Unix:
		return 2
	case Copier:
		return 6
	}
	return 4
}

// takeFiles charges the files of an end before they are opened.
func (e *end) takeFiles(n int64) error {
	if err := e.connection.b.take(e.owner.owner, quota.Files, n); err != nil {
		return err
	}
	e.files += n
	return nil
}

// recount charges an end with the files that the broker now has open for it. The lock is held.
func (e *end) recount() {
	n := int64(0)
	if e.Memory != nil {
		n += int64(e.Memory.Held())
	}
	if e.Doorbell >= 0 {
		n++
	}
	if e.connection.holdsTCP() {
		n++
	}
	e.connection.b.ledger.Force(e.owner.owner, quota.Files, n-e.files)
	e.files = n
}

// recountBoth is recount for both ends: when one maps memory, a file of the other may be closed.
func (c *connection) recountBoth() {
	for _, e := range c.ends {
		e.recount()
	}
}
