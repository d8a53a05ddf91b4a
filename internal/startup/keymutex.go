package startup

import "sync"

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
