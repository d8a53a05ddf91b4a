package copier

import "log/slog"

// stack copies for the engine copier: the paper's PD Stack. One serves the
// queues of one core. Its methods are called by that core's worker alone.
type stack interface {
	// add tells of memory that entries may name from now on.
	add(region uint32, m *shared) error
	// drop tells of memory that none names any more.
	drop(region uint32)
	// kick says that there may be submissions. Their completions come then or
	// later.
	kick()
	// depth is how many copies of a connection should be under way at a time.
	depth() int
	close() error
}

// newStack makes a stack and its queues.
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
	d, err := newDevice(log, helper, q)
	if err != nil {
		log.Warn("pipe: no device copies, a processor does", "helper", helper, "error", err)
		return q, newSoftware(q), nil
	}
	return q, d, nil
}

// software is the stack that copies by the worker's own processor.
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

// depth: the receiver reads the one while the next is copied.
func (s *software) depth() int { return 1 }

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

// copy carries one out. An application may see to it that there is no memory
// for its pages: that fault ends nobody but its connection.
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
