package startbench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/suggest"
)

// Names of the networks.
const (
	NetworkNone       = "none"
	NetworkNoop       = "noop"
	NetworkBridge     = "bridge"
	NetworkPTP        = "ptp"
	NetworkMacvlan    = "macvlan"
	NetworkSconNoPool = "scon-nopool"
	NetworkSconPool   = "scon-pool"
)

// Networks lists the networks in the order of help and documents.
var Networks = []string{
	NetworkNone, NetworkNoop, NetworkBridge, NetworkPTP, NetworkMacvlan, NetworkSconNoPool, NetworkSconPool,
}

// Mode is a network with its options: NAME[+OPTION...].
type Mode struct {
	Name    string // as given
	Network string
	// QoS limits each container's bandwidth.
	QoS bool
	// Admission limits the containers in each stage.
	Admission bool
	// OCI leaves the hand-over to scon-oci: the launcher makes no namespace and calls
	// no plugin.
	OCI bool
	// Rules is the number of rules of each container's security group, Tenants the
	// number of tenants; 0 means one.
	Rules, Tenants int
	// Kind is the kind of the primary device; "" means veth.
	Kind string
}

// ParseMode reads a mode's name.
func ParseMode(name string) (Mode, error) {
	words := strings.Split(name, "+")
	m := Mode{Name: name, Network: words[0]}
	if !slices.Contains(Networks, m.Network) {
		return Mode{}, fmt.Errorf("no network %q%s", m.Network, suggest.Hint(m.Network, Networks))
	}
	for _, option := range words[1:] {
		if err := m.option(option); err != nil {
			return Mode{}, fmt.Errorf("network %q: %w", name, err)
		}
	}
	return m, m.check()
}

// option parses one option of a mode's name.
func (m *Mode) option(word string) (err error) {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "qos":
		m.QoS = true
	case "admission":
		m.Admission = true
	case "oci":
		m.OCI = true
	case "kind":
		m.Kind = value
	case "rules":
		m.Rules, err = parseNumber(value)
	case "tenants":
		m.Tenants, err = parseNumber(value)
	default:
		return fmt.Errorf("no option %q: there are qos, rules=N, tenants=N, kind=KIND, admission, oci", word)
	}
	return err
}

func parseNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		return 0, fmt.Errorf("%q: want a number from 1 to 1000", text)
	}
	return n, nil
}

// scon reports whether SCON makes the network.
func (m Mode) scon() bool { return m.Network == NetworkSconNoPool || m.Network == NetworkSconPool }

// networked reports whether containers answer pings.
func (m Mode) networked() bool { return m.Network != NetworkNone && m.Network != NetworkNoop }

func (m Mode) check() error {
	switch {
	case m.scon():
		if err := m.checkScon(); err != nil {
			return fmt.Errorf("network %q: %w", m.Name, err)
		}
		return nil
	case m.Admission, m.OCI, m.Rules > 0, m.Tenants > 0, m.Kind != "":
		return fmt.Errorf("network %q: only scon-nopool and scon-pool have these options", m.Name)
	case m.QoS && !m.networked():
		return fmt.Errorf("network %q: it has no bandwidth to limit", m.Name)
	}
	return nil
}
