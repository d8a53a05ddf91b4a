package startbench

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"

	"github.com/scon-project/scon/test/bed/vm"
)

// guestKernel is the kernel version of microVMs.
const guestKernel = "6.12"

//go:embed microvm.sh
var guestInit []byte

// prepareGuest fetches the kernel of microVMs and writes their initrd.
func (b *bed) prepareGuest(ctx context.Context) (err error) {
	b.initrd = filepath.Join(b.dir, "initrd")
	b.image, err = vm.Light(ctx, guestKernel, b.initrd, guestInit, "failover", "net_failover", "virtio_net")
	if err != nil {
		return fmt.Errorf("prepare the microVM's kernel: %w", err)
	}
	return nil
}
