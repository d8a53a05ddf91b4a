package pipebench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/scon-project/scon/internal/pipe/copier"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/lab"
)

// firstPort is the first port to listen on. Each sample uses other ports, since
// closed TCP ports stay in TIME_WAIT for a minute.
const (
	firstPort = 7000
	lastPort  = 30000
)

// bed is a lab with a broker of the pipe.
type bed struct {
	options  Options
	lab      *lab.Lab
	dir      string
	shm      string // likewise, on a file system in memory
	broker   *broker
	sockmap  *sockmap // nil until a mode needs it
	lastPort uint16
	listens  int // the CPU of the listening end
	connects int
}

// openBed builds a bed for this process.
func openBed(ctx context.Context, o Options) (b *bed, err error) {
	b = &bed{options: o, lastPort: firstPort}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.connects, b.listens, err = bench.TwoCPUs(); err != nil {
		return b, err
	}
	if b.dir, err = os.MkdirTemp("", "scon-pipe-"); err != nil {
		return b, err
	}
	if b.shm, err = os.MkdirTemp("/dev/shm", "scon-pipe-"); err != nil {
		return b, err
	}
	containers := 2
	if o.Apps {
		containers = appContainers
	}
	b.lab, err = lab.Up(lab.Options{Prefix: fmt.Sprintf("sconpipe%d-", os.Getpid()), Containers: containers, Rules: lab.RulesDocker})
	if err != nil {
		return b, err
	}
	b.broker, err = startBroker(ctx, filepath.Join(b.dir, "pipe.sock"), "")
	return b, err
}

// Close implements bench.Bed.
func (b *bed) Close() error {
	var errs []error
	if b.sockmap != nil {
		errs = append(errs, b.sockmap.close())
	}
	if b.broker != nil {
		errs = append(errs, b.broker.stop())
	}
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir), os.RemoveAll(b.shm))...)
}

// Ready implements bench.Bed.
func (b *bed) Ready(ctx context.Context, mode bench.Mode) (err error) {
	m, helper := modeOf(mode.Name), ""
	if m.sockmap && b.sockmap == nil {
		b.sockmap, err = openSockmap()
	}
	if m.device && err == nil {
		helper, err = copier.FindHelper()
	}
	if helper != b.broker.helper && err == nil {
		socket := b.broker.socket
		err = b.broker.stop()
		b.broker = nil
		if err == nil {
			b.broker, err = startBroker(ctx, socket, helper)
		}
	}
	if m.device && err == nil {
		err = b.awaitDevice(ctx, m)
	}
	return err
}

// awaitDevice waits until the device copies. Helpers start with a worker's first connection.
func (b *bed) awaitDevice(ctx context.Context, m mode) error {
	for end := time.Now().Add(devicePatience); ; {
		if _, _, err := b.exchange(ctx, m, load{size: 64 << 10, connections: 4}); err != nil {
			return err
		}
		name, err := b.broker.device()
		if err != nil || name != "" {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the copy helper is not ready after %v", devicePatience)
		}
	}
}

// Clear implements bench.Bed. It does nothing: every sample cleans up after itself.
func (b *bed) Clear() error { return nil }

// Take implements bench.Bed. What a baseline cannot do on this machine is missing in the
// result; what the pipe cannot do is an error.
func (b *bed) Take(ctx context.Context, mode bench.Mode, s bench.Step) (bench.Sample, error) {
	for _, own := range stepsOf(b.options.experimentName()) {
		if own.name != s.Name {
			continue
		}
		m := modeOf(mode.Name)
		values, err := own.take(ctx, b, m)
		if err != nil && m.isBaseline() && ctx.Err() == nil {
			fmt.Fprintf(b.options.Notes, "missing: %s of %s: %v\n", own.name, m.name, err)
			return bench.Sample{}, nil
		}
		return bench.Sample{Values: values}, err
	}
	return bench.Sample{}, fmt.Errorf("no step %q", s.Name)
}

// address returns the address that container n listens on in a mode, in the
// programs' syntax, and a port that no recent sample has used.
func (b *bed) address(m mode, n int) (address string, port uint16) {
	if b.lastPort++; b.lastPort > lastPort {
		b.lastPort = firstPort
	}
	if m.transport == "unix" {
		return fmt.Sprintf("unix:%s/%d", b.dir, b.lastPort), b.lastPort
	}
	if m.bare {
		return fmt.Sprintf("%s:%s/%d", m.transport, b.shm, b.lastPort), b.lastPort
	}
	return fmt.Sprintf("%s:%v", m.transport, netip.AddrPortFrom(b.ip(m, n), b.lastPort)), b.lastPort
}

// ip returns the IP address of container n in a mode.
func (b *bed) ip(m mode, n int) netip.Addr {
	if m.alone {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return b.lab.Addr(lab.Container(n))
}
