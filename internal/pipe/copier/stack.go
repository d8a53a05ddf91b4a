package copier

import "log/slog"

// stack copies for the engine copier: the PD Stack (PipeDevice, section III). It serves the
// queues of one core. Only that core's worker calls its methods.
type stack interface {
	// add registers memory that entries may name from now on.
	add(region uint32, m *shared) error
	// drop unregisters memory that no entry names any more.
	drop(region uint32)
	// kick announces that there may be submissions. The stack completes them during the
	// call or later.
	kick()
	// depth returns how many copies of a direction should be in progress at a time.
	depth() int
	// mostPiece bounds a copy, in bytes.
	mostPiece() uint64
	close() error
}

// newStack returns a stack and its queues. While no helper runs, the CPU copies.
func newStack(log *slog.Logger, helper string) (*queues, stack, error) {
	name := ""
	if helper != "" {
		name = "queues"
	}
	q, err := newQueues(name)
	if err != nil {
		return nil, nil, err
	}
	if helper == "" {
		return q, newSoftware(q), nil
	}
	return q, newDevice(log, helper, q), nil
}

// software is the stack that copies on the worker's thread.
type software struct {
	q       *queues
	regions map[uint32][]byte
}

func newSoftware(q *queues) *software { return &software{q, make(map[uint32][]byte)} }

func (s *software) add(region uint32, m *shared) error {
	s.regions[region] = m.memory
	return nil
}

func (s *software) drop(region uint32) { delete(s.regions, region) }

// depth is 1: kick completes each copy before it returns.
func (s *software) depth() int { return 1 }

// mostPiece lets the receiver read a piece while the next one is copied.
func (s *software) mostPiece() uint64 { return 128 << 10 }

func (s *software) close() error { return nil }

func (s *software) kick() {
	for {
		e, ok := s.q.take()
		if !ok {
			return
		}
		e.Kind = kindFailed
		if s.copy(e) {
			e.Kind = kindCompleted
		}
		s.q.complete(e)
	}
}

// copy executes an entry. A process can make an access to its pages fault, by its memory
// limit for example: the fault resets its connection only.
func (s *software) copy(e entry) (done bool) {
	defer func() {
		if recover() != nil {
			done = false
		}
	}()
	src, dst := place(e.Src), place(e.Dst)
	from, to := s.regions[src.region()][src.offset():], s.regions[dst.region()][dst.offset():]
	copy(to[:e.Len], from[:e.Len])
	return true
}
