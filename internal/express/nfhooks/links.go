package nfhooks

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/bpfload"
)

// links lists the BPF programs at Netfilter's hooks of one network namespace.
type links struct {
	netns uint32 // inode
	iter  *link.Iter
}

// openLinks loads the iterator. It fails on a kernel without BTF, and on one
// without iterators of links or without links of Netfilter, which needs none.
func openLinks(netns uint32) (*links, error) {
	var objs netfilterlinksObjects
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	spec, err := loadNetfilterlinks()
	if err == nil {
		err = bpfload.LoadAndAssign(spec, &objs, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("list BPF programs at Netfilter's hooks: %w", err)
	}
	defer objs.Close() // the link keeps the program
	iter, err := link.AttachIter(link.IterOptions{Program: objs.NetfilterLinks})
	if err != nil {
		return nil, fmt.Errorf("list BPF programs at Netfilter's hooks: %w", err)
	}
	return &links{netns, iter}, nil
}

func (l *links) close() { l.iter.Close() }

func (l *links) list() (all []Hook, err error) {
	r, err := l.iter.Open()
	if err != nil {
		return nil, fmt.Errorf("list BPF programs at Netfilter's hooks: %w", err)
	}
	defer r.Close()
	for {
		var n netfilterlinksNetfilterLink
		err := binary.Read(r, binary.NativeEndian, &n)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list BPF programs at Netfilter's hooks: %w", err)
		}
		if n.Netns != l.netns {
			continue
		}
		name := make([]byte, len(n.Name))
		for i, c := range n.Name {
			name[i] = byte(c)
		}
		all = append(all, Hook{
			Family: uint8(n.Family), Point: uint8(n.Hook), Priority: n.Priority,
			Program: n.Program, Name: unix.ByteSliceToString(name),
		})
	}
}
