package datapath

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// form is that of packets at an uplink, or of their way there: each has programs of its own.
type form int

const (
	usual   form = iota
	bare         // without a MAC header
	bridged      // of a port of the containers' bridge
	forms
)

// uplinks has the programs of uplinks. Those of another form than usual are loaded when the
// first such uplink is hooked: a machine without one does not pay for them, a third of the
// verifier's work.
type uplinks struct {
	mu     sync.Mutex
	loaded [forms]uplinkPair
	err    [forms]error // why the verifier refuses them: it is not asked again
	ids    tcfilter.Own // of all programs that hooks may have; never changed, but replaced
}

// uplinkPair are the programs of the uplinks of a form.
type uplinkPair struct{ FromWire, ToWire *ebpf.Program }

// uplinkPrograms returns those of a form.
func (d *Datapath) uplinkPrograms(f form) (uplinkPair, error) {
	if f == usual {
		return uplinkPair{d.objs.FromWire, d.objs.ToWire}, nil
	}
	u := &d.uplinks
	u.mu.Lock()
	pair, err := u.loaded[f], u.err[f]
	u.mu.Unlock()
	if pair.FromWire != nil || err != nil {
		return pair, err
	}
	if pair, err = d.loadUplinks(f); err == nil {
		err = u.own(pair.FromWire, pair.ToWire)
	}
	if err != nil {
		pair.close()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if refused := new(ebpf.VerifierError); errors.As(err, &refused) {
		u.err[f] = err
	}
	if err == nil {
		u.loaded[f] = pair
	}
	return pair, err
}

func (p uplinkPair) close() error { return errors.Join(p.FromWire.Close(), p.ToWire.Close()) }

// loadUplinks loads the programs of a form over the maps of all others.
func (d *Datapath) loadUplinks(f form) (uplinkPair, error) {
	if err := checkRoom(roomForPrograms); err != nil {
		return uplinkPair{}, fmt.Errorf("loading the BPF programs: %w", err)
	}
	spec, err := d.spec()
	if err != nil {
		return uplinkPair{}, err
	}
	there := d.objs.pinned()
	there[expressMapOdd], there[expressMapChunk] = d.objs.Odd, d.objs.Chunk
	if f == bare {
		var pair struct {
			FromWire *ebpf.Program `ebpf:"scon_from_wire_bare"`
			ToWire   *ebpf.Program `ebpf:"scon_to_wire_bare"`
		}
		err = load(spec, &pair, there)
		return uplinkPair(pair), err
	}
	var pair struct {
		FromWire *ebpf.Program `ebpf:"scon_from_wire_bridged"`
		ToWire   *ebpf.Program `ebpf:"scon_to_wire_bridged"`
	}
	err = load(spec, &pair, there)
	return uplinkPair(pair), err
}

// own adds programs to those that are SCON's.
func (u *uplinks) own(programs ...*ebpf.Program) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	ids := make(tcfilter.Own)
	maps.Copy(ids, u.ids)
	for _, p := range programs {
		info, err := p.Info()
		if err != nil {
			return fmt.Errorf("open program %s: %w", p, err)
		}
		if id, ok := info.ID(); ok {
			ids[id] = true
		}
	}
	u.ids = ids
	return nil
}

// Programs are those that Attach has attached, or may attach without loading others.
func (d *Datapath) Programs() tcfilter.Own {
	d.uplinks.mu.Lock()
	defer d.uplinks.mu.Unlock()
	return d.uplinks.ids
}

func (u *uplinks) close() error {
	var errs []error
	for _, pair := range u.loaded {
		errs = append(errs, pair.close())
	}
	return errors.Join(errs...)
}
