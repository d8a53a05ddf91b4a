package pin

// Status is what is in force.
type Status struct {
	// Applied is false if nothing is: the rest is empty then.
	Applied bool `json:"applied"`
	// Booted is true if the machine has started anew since: what is left is on
	// disk only.
	Booted   bool     `json:"booted"`
	Plan     *Options `json:"plan,omitempty"`
	Settings []State  `json:"settings"`
	// Differs counts those that are not as they were wanted, Waiting the
	// interrupts that have not come since.
	Differs int `json:"differs"`
	Waiting int `json:"waiting"`
}

// State is a setting as it is now.
type State struct {
	Setting
	Before string `json:"before"`
	Is     string `json:"is"` // the value; "" if it cannot be read
	// Effective is what the kernel makes of an interrupt's CPUs.
	Effective string `json:"effective,omitempty"`
	// Differs says how it is not as it was wanted; "" if it is.
	Differs string `json:"differs,omitempty"`
	// Waiting: the CPUs are set, but the kernel moves an interrupt when it next
	// comes, and it has not.
	Waiting bool `json:"waiting,omitempty"`
}

// Inspect compares what is with what was wanted.
func (h *Host) Inspect() (Status, error) {
	status := Status{Settings: []State{}}
	r, err := h.readRecord()
	if r == nil || err != nil {
		return status, err
	}
	status.Applied, status.Plan = true, &r.Plan
	status.Booted = r.Boot != h.bootID()
	for _, s := range r.Settings {
		one := h.inspect(s)
		if one.Differs != "" {
			status.Differs++
		}
		if one.Waiting {
			status.Waiting++
		}
		status.Settings = append(status.Settings, one)
	}
	return status, nil
}

func (h *Host) inspect(s recorded) State {
	state := State{Setting: s.Setting, Before: s.Before}
	var err error
	if state.Is, err = h.get(s.Setting); err != nil {
		state.Differs = err.Error()
		return state
	}
	state.Effective = h.effective(s.Setting)
	switch {
	case s.Kind == kindThreads && sameThreads(state.Is, s.Want):
	case state.Is != s.Want:
		state.Differs = "it is " + quoted(state.Is)
	default:
		state.Waiting = !within(state.Effective, s.Want)
	}
	return state
}

// within reports whether an interrupt comes to CPUs that were wanted; "" where the
// kernel does not say.
func within(effective, want string) bool {
	if effective == "" {
		return true
	}
	is, err := parseList(effective)
	if err != nil {
		return false
	}
	wanted, err := parseList(want)
	return err == nil && len(is.without(wanted)) == 0
}

func quoted(value string) string {
	if value == "" {
		return "empty"
	}
	return value
}
