// Package doctor looks at a machine, with or without a daemon, with or
// without root: what is here of all that SCON uses, what is lost without it,
// how to mend it.
package doctor

import "github.com/scon-project/scon/internal/api"

// Levels of a capability and of a finding.
const (
	ok   = "ok"
	note = "note" // a lesser way is taken, or it could not be looked at
	warn = "warn" // something stays regular that need not
	fail = "fail" // no daemon can run
)

// Examine looks at the machine and at the network namespace of the calling
// thread.
func Examine() api.Doctor {
	h := thisHost()
	return api.Doctor{Kernel: h.release, Capabilities: []api.Capability{}, Findings: []api.Finding{}}
}
