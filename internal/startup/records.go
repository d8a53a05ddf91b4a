package startup

import (
	"maps"
	"slices"
	"sync"

	"github.com/scon-project/scon/internal/startup/ipam"
)

// records are the attachments, by key. Each is in a file, too.
type records struct {
	keyedMutex // held by the request of an attachment
	files      *store

	mu sync.Mutex
	of map[string]*Record
}

func newRecords(files *store) *records { return &records{files: files, of: make(map[string]*Record)} }

func (s *records) get(key string) *Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[key]
}

func (s *records) all() []*Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.of))
}

// keep writes a record: it makes the attachment exist.
func (s *records) keep(r *Record) error {
	if err := s.files.put(r); err != nil {
		return err
	}
	s.add(r)
	return nil
}

// add adds a record that is in a file, remove removes one whose file is gone.
func (s *records) add(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[r.key] = r
}

func (s *records) remove(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, r.key)
}

// inUse reports whether a network has attachments.
func (s *records) inUse(network string) bool {
	return slices.ContainsFunc(s.all(), func(r *Record) bool { return r.Network.Name == network })
}

// leased reports whether an attachment of a network has an address.
func (s *records) leased(network string, l ipam.Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.of {
		if r.Network.Name == network && slices.ContainsFunc(r.Leases, func(other ipam.Lease) bool { return other.Address.Addr() == l.Address.Addr() }) {
			return true
		}
	}
	return false
}

// keyedMutex is a mutex for each key.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]*holder
}

type holder struct {
	sync.Mutex
	users int
}

// lock locks a key and returns the function that unlocks it.
func (k *keyedMutex) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.held == nil {
		k.held = make(map[string]*holder)
	}
	h := k.held[key]
	if h == nil {
		h = new(holder)
		k.held[key] = h
	}
	h.users++
	k.mu.Unlock()
	h.Lock()
	return func() {
		h.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(k.held, key)
		}
	}
}
