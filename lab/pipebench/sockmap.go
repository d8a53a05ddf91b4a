package pipebench

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -no-global-types -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" sockmap ../bpf/sockmap.bpf.c

// sockmap is the BPF program of that mode, attached to its map.
type sockmap struct {
	objects sockmapObjects
	file    *os.File // the map, for the load program
}

func openSockmap() (s *sockmap, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}
	s = &sockmap{}
	if err := loadSockmapObjects(&s.objects, nil); err != nil {
		return nil, fmt.Errorf("load the program of sockmap: %w", err)
	}
	fd, err := unix.FcntlInt(uintptr(s.objects.Ends.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		s.file = os.NewFile(uintptr(fd), "sockmap")
		err = link.RawAttachProgram(s.attachment())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach the program of sockmap: %w", err), s.close())
	}
	return s, nil
}

func (s *sockmap) attachment() link.RawAttachProgramOptions {
	return link.RawAttachProgramOptions{Target: s.objects.Ends.FD(), Program: s.objects.Redirect, Attach: ebpf.AttachSkMsgVerdict}
}

// serverPort sets the server's port, by which the program distinguishes the two
// ends.
func (s *sockmap) serverPort(port uint16) error {
	return s.objects.ServerPort.Set(uint32(port))
}

func (s *sockmap) close() error {
	if s.file != nil {
		s.file.Close()
	}
	return s.objects.Close()
}
