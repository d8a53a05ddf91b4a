package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/pipe/engine"
)

// usualFilesAt is where Linux 6.1 to 7.3 of 64 bits have the files of a UNIX socket's packet.
const usualFilesAt = 56

// filesAt returns where the running kernel has them, in bytes from the beginning of struct
// sk_buff, as far as its type information says so. checkBell finds out whether it is true.
func filesAt() (at uint32) {
	kernel, err := btf.LoadKernelSpec()
	for _, field := range [][2]string{{"sk_buff", "cb"}, {"unix_skb_parms", "fp"}} {
		var s *btf.Struct
		if err != nil || kernel.TypeByName(field[0], &s) != nil {
			return usualFilesAt
		}
		for _, m := range s.Members {
			if m.Name == field[1] {
				at += m.Offset.Bytes()
			}
		}
	}
	return at
}

// errPassesFiles: two processes could pass each other a socket of their own, which no change of
// rules ends.
var errPassesFiles = fmt.Errorf("the filter of doorbells cannot see files on this kernel: %w", ebpf.ErrNotSupported)

// checkBell checks that a doorbell passes a byte, and none with a file.
func (k *Program) checkBell() error {
	pair, err := engine.Doorbells(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if _, err := k.restrict(pair[1]); err != nil {
		return err
	}
	for _, rights := range [][]byte{unix.UnixRights(pair[0]), nil} {
		if err := unix.Sendmsg(pair[0], []byte{1}, rights, nil, unix.MSG_DONTWAIT); err != nil {
			return fmt.Errorf("%w: %w", errPassesFiles, err)
		}
		_, _, err := unix.Recvfrom(pair[1], make([]byte, 1), unix.MSG_DONTWAIT)
		if passes := err == nil; passes != (rights == nil) {
			return errPassesFiles
		}
	}
	return nil
}
