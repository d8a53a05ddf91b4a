package bench

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
)

// Usage is what a Meter has measured since it was opened.
type Usage struct {
	// Softirq is the network softirq time of all CPUs.
	Softirq time.Duration
	// Above is the share of Softirq that the kernel also charges to the watched
	// process, because it interrupted that process.
	Above time.Duration
	// UplinkPackets counts both directions.
	UplinkPackets uint64
}

// Meter measures the processor cost of Traffic. Its probes add about 0.1 us to
// every softirq.
type Meter struct {
	site    *Site
	softirq *softirqMeter
	packets uint64 // the uplink's count when the meter was opened
}

// OpenMeter starts measuring.
func (s *Site) OpenMeter() (m *Meter, err error) {
	m = &Meter{site: s}
	if m.packets, err = m.uplinkPackets(); err != nil {
		return nil, err
	}
	if m.softirq, err = openSoftirqMeter(); err != nil {
		return nil, err
	}
	return m, nil
}

// Watch sets the process of Usage.Above.
func (m *Meter) Watch(pid int) error {
	if !includesSoftirqs() {
		return nil
	}
	if err := m.softirq.objects.WatchedProcess.Set(uint32(pid)); err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	return nil
}

// Usage returns the usage since the meter was opened.
func (m *Meter) Usage() (u Usage, err error) {
	if u.Softirq, u.Above, err = m.softirq.read(); err != nil {
		return Usage{}, err
	}
	now, err := m.uplinkPackets()
	u.UplinkPackets = now - m.packets
	return u, err
}

func (m *Meter) uplinkPackets() (n uint64, err error) {
	err = m.site.lab.Do(lab.Device, func() error {
		n, err = CountPackets(lab.Uplink)
		return err
	})
	return n, err
}

// Close stops measuring.
func (m *Meter) Close() error { return m.softirq.Close() }

// ProcessTime returns the processor time that all threads of a process have used,
// including threads that have exited.
func ProcessTime(pid int) (time.Duration, error) { return processTime(pid) }

// includesSoftirqs reports whether this kernel charges softirqs to the process that
// they interrupt. It does unless it was built with CONFIG_IRQ_TIME_ACCOUNTING.
var includesSoftirqs = sync.OnceValue(func() bool {
	config, err := readKernelConfig()
	return err != nil || !strings.Contains(config, "\nCONFIG_IRQ_TIME_ACCOUNTING=y")
})

func readKernelConfig() (string, error) {
	text, err := os.ReadFile("/boot/config-" + kernelRelease())
	if err == nil {
		return string(text), nil
	}
	f, openErr := os.Open("/proc/config.gz")
	if openErr != nil {
		return "", errors.Join(err, openErr)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	text, err = io.ReadAll(unzipped)
	return string(text), err
}
