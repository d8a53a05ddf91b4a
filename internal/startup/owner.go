package startup

// Owner is whose a device of the host is.
type Owner struct {
	Netns       string // path of the namespace with its other end
	ContainerID string // "" in the pool
}

// own says whose a device will be, before it is there.
func (a *Agent) own(host string, o Owner) {
	if host == "" {
		return
	}
	a.mu.Lock()
	a.owners[host] = o
	a.mu.Unlock()
	if a.opts.Owned != nil && o.ContainerID != "" {
		a.opts.Owned(host, o)
	}
}

func (a *Agent) disown(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.owners, host)
}

// Owner is whose a device of the host is; false if it is none of the agent's.
func (a *Agent) Owner(host string) (Owner, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, ok := a.owners[host]
	return o, ok
}
