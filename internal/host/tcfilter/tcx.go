package tcfilter

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Program is a tcx program at a device.
type Program struct {
	ID   ebpf.ProgramID
	Name string // "" without the right to read it
}

// String names a program as bpftool(8) finds it.
func (p Program) String() string {
	if p.Name == "" {
		return fmt.Sprintf("tcx program %d", p.ID)
	}
	return fmt.Sprintf("tcx program %s, id %d", p.Name, p.ID)
}

// Own is the set of SCON's programs.
type Own map[ebpf.ProgramID]bool

// Arrangement is the order of the tcx programs at one side of a device.
type Arrangement struct {
	// Revision changes with each change of the programs. It is 0 on kernels
	// before Linux 6.6, which have no tcx.
	Revision uint64
	Own      bool // SCON's program is among them
	// The programs of others that run before SCON's and after it. All are in
	// Before if SCON's is not there.
	Before, After []Program
}

// Ousters returns the programs of others that have taken SCON's place: last at
// an ingress, so that express packets skip none, and first at an egress, to
// see the decision of the regular path.
func (a Arrangement) Ousters(at ebpf.AttachType) []Program {
	switch {
	case at == ebpf.AttachTCXIngress:
		return a.After
	case a.Own:
		return a.Before
	default:
		return nil
	}
}

// Foreign lists the programs of others in the order in which they run.
func (a Arrangement) Foreign() []Program {
	return append(a.Before[:len(a.Before):len(a.Before)], a.After...)
}

// Arranged returns the programs at one side of a device, ebpf.AttachTCXIngress
// or ebpf.AttachTCXEgress, in the namespace of the calling thread. If the
// revision is still the known one, it only reports that.
func (own Own) Arranged(ifindex int, at ebpf.AttachType, known uint64) (a Arrangement, current bool, err error) {
	if r, err := revision(ifindex, at); err == nil && r == known && known != 0 {
		a.Revision = r
		return a, true, nil
	}
	r, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		return a, known == 0, nil
	}
	if err != nil {
		return a, false, fmt.Errorf("query tcx programs of device %d: %w", ifindex, err)
	}
	a.Revision = r.Revision
	if a.Revision == known {
		return a, true, nil
	}
	for _, attached := range r.Programs {
		switch {
		case own[attached.ID]:
			a.Own = true
		case a.Own:
			a.After = append(a.After, program(attached.ID))
		default:
			a.Before = append(a.Before, program(attached.ID))
		}
	}
	return a, false, nil
}

// revision returns the revision alone: each second it is all that thousands of places are
// asked for. link.QueryPrograms asks twice, and for the programs.
func revision(ifindex int, at ebpf.AttachType) (uint64, error) {
	query := struct { // of union bpf_attr
		ifindex, attach, queryFlags, attachFlags uint32
		programs                                 uint64
		count, _                                 uint32
		programFlags, links, linkFlags, revision uint64
	}{ifindex: uint32(ifindex), attach: uint32(at)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	if errno != 0 {
		return 0, errno
	}
	return query.revision, nil
}

// program returns the name of a program. Opening programs of others takes
// CAP_SYS_ADMIN.
func program(id ebpf.ProgramID) Program {
	p := Program{ID: id}
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return p
	}
	defer prog.Close()
	if info, err := prog.Info(); err == nil {
		p.Name = info.Name
	}
	return p
}
