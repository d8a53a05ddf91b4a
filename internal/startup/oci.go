package startup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/control"
)

// The annotation and the environment variable that name a container's network, for the
// networks of startup.env_networks only.
const (
	networkAnnotation = "scon.network"
	networkVariable   = "SCON_NETWORK"
)

// OCI handles a request of scon-oci. A create waits for admission and receives a
// pooled namespace in the container's configuration; a start waits for admission.
// The outcome of a verb ends its stage; that of a delete also removes the device.
func (a *Agent) OCI(o control.OCI) error {
	switch {
	case o.ID == "":
		return errors.New("the request names no container")
	case strings.Contains(o.ID, "/") || o.ID == "." || o.ID == "..": // it becomes part of a file's name
		return fmt.Errorf("container ID %q: want one without '/' that is neither '.' nor '..'", o.ID)
	case o.Outcome != "":
		return a.ociDone(o)
	case o.Verb == "create":
		return a.within(StageCgroup, o, a.ociCreate)
	case o.Verb == "start":
		return a.within(StageStartVM, o, a.ociStart)
	}
	return nil
}

// within has a container enter the stage of a verb, which the verb's outcome ends; a refused
// verb has no outcome. It leaves the stage of an earlier verb whose outcome is missing.
func (a *Agent) within(s Stage, o control.OCI, do func(control.OCI) error) error {
	a.starts.endStage(o.ID)
	a.starts.ends.put(o.ID, a.stages.begin(s, o.ID))
	err := do(o)
	if err != nil {
		a.starts.endStage(o.ID)
	}
	return err
}

// starts are the containers that a runtime is starting by scon-oci. Several creates may have
// one ID, of which the runtime refuses all but one.
type starts struct {
	ends    byKey[string, func()] // ends the stage that a container is in
	creates byKey[int, create]    // that are under way, by the process of scon-oci
}

// create is what a create has made for its container.
type create struct {
	id      string
	record  *Record // nil: nothing
	pending string  // its file, if a device is to be made before its start; else ""
}

// endStage ends the stage that a container is in, if it is in one.
func (s *starts) endStage(id string) {
	if end, ok := s.ends.take(id); ok {
		end()
	}
}

// byKey is a value for each of some keys.
type byKey[K comparable, V any] struct {
	mu sync.Mutex
	of map[K]V
}

func (m *byKey[K, V]) put(key K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil {
		m.of = make(map[K]V)
	}
	m.of[key] = v
}

// take removes a key's value and returns it, if it has one.
func (m *byKey[K, V]) take(key K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok = m.of[key]
	delete(m.of, key)
	return v, ok
}

// ociDone ends a container's stage, and its attachments after a delete. A create that failed
// takes along what it has made itself: where an ID is taken, the runtime's container keeps what
// it has. Of a create that another agent began, only the bundle is known.
func (a *Agent) ociDone(o control.OCI) error {
	a.starts.endStage(o.ID)
	made, _ := a.starts.creates.take(o.PID)
	began := made.id == o.ID
	switch {
	case o.Verb == "delete" && o.Outcome == "done":
		return errors.Join(a.store.removePending(o.ID), a.detachAll(a.records.all(), ofContainer(o.ID)))
	case o.Verb == "create" && o.Outcome == "done":
		return a.store.notePending(o)
	case o.Verb == "create" && o.Outcome == "failed":
		var err error
		if began && made.pending != "" {
			err = removeFile(made.pending)
		}
		return errors.Join(err, a.detachAll(a.records.all(), func(r *Record) bool {
			return began && r == made.record || !began && ofContainer(o.ID)(r) && r.Bundle == o.Bundle
		}))
	}
	return nil
}

// ofContainer returns whether an attachment is one of scon-oci's of a container.
func ofContainer(id string) func(*Record) bool {
	return func(r *Record) bool { return r.ContainerID == id && r.Bundle != "" }
}

// ociCreate notes what ociMake makes until the outcome.
func (a *Agent) ociCreate(o control.OCI) error {
	made, err := a.ociMake(o)
	if err == nil { // else there is no outcome
		a.starts.creates.put(o.PID, made)
	}
	return err
}

// ociMake writes the path of a prepared namespace into a container's configuration. It
// changes nothing for a container that names no network or has a network namespace already.
func (a *Agent) ociMake(o control.OCI) (made create, err error) {
	made.id = o.ID
	file, err := readBundle(o.Bundle)
	if err != nil {
		return made, err
	}
	network := a.networkFor(o, file)
	if network == "" || !file.wantsNetns() {
		return made, nil
	}
	n := a.networks.named(network)
	if n == nil {
		return made, fmt.Errorf("container %s: %w", o.ID, unknownNetworkError(network))
	}
	if n.space == nil {
		return made, fmt.Errorf("network %q has ipam.type %s: scon-oci requires ipam.type scon", n.conf.Name, n.conf.IPAM.Type)
	}
	r := newRecord(cni.Attachment{ContainerID: o.ID, IfName: pooledName}, n.conf)
	r.Bundle = o.Bundle
	defer a.records.lock(r.key)()
	if a.records.get(r.key) != nil {
		return made, fmt.Errorf("container %s is already in network %q", o.ID, network)
	}
	if file.hasUserns() {
		// Its device is made when its process exists.
		if o.PidFile == "" {
			return made, fmt.Errorf("container %s has a user namespace: --pid-file is required to make its device in place", o.ID)
		}
		p := a.store.newPending(o, n.conf)
		first, err := p.await()
		if first {
			made.pending = p.path
		}
		step("oci-pending")
		return made, err
	}
	e, err := a.ready(n, o.ID)
	if err != nil {
		return made, err
	}
	made.record = r
	return made, a.ociGive(n, e, r, file)
}

// ready returns a namespace of the pool, else one that is prepared now.
func (a *Agent) ready(n *network, container string) (*entry, error) {
	if n.pool != nil {
		if e := a.take(n); e != nil {
			step("oci-taken")
			return e, nil
		}
		a.tally.countInPlace(poolEmpty)
	}
	return a.wire(n, container)
}

// ociGive gives a prepared namespace to a container.
func (a *Agent) ociGive(n *network, e *entry, r *Record, file *bundle) (err error) {
	undo := undoList{func() error { return a.drop(n, e) }}
	defer undo.after(&err)
	name := a.home.pooledName(e.number)
	if err := netns.Attach(name, netns.FdPath(e.ns)); err != nil {
		return err
	}
	undo.by(func() error { return netns.Delete(name) })
	step("oci-named")
	r.Netns = netns.Path(name)
	a.give(e, r, n.conf)
	if err := a.records.keep(r); err != nil {
		return err
	}
	step("oci-kept")
	e.ns.Close()
	a.tally.countHanded()
	undo = nil // detach does it now
	if err := file.setNetns(r.Netns); err != nil {
		return errors.Join(err, a.detach(r))
	}
	step("oci-written")
	return nil
}

// bundle is a container's configuration. Keys that SCON does not read stay unchanged.
type bundle struct {
	path       string
	all, linux map[string]json.RawMessage
	spec       specs.Spec
}

func readBundle(dir string) (*bundle, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("bundle %q: want an absolute path", dir)
	}
	b := &bundle{path: filepath.Join(dir, "config.json")}
	content, err := os.ReadFile(b.path)
	if err != nil {
		return nil, fmt.Errorf("read the container's configuration: %w", err)
	}
	if err = json.Unmarshal(content, &b.all); err == nil {
		err = json.Unmarshal(content, &b.spec)
	}
	if err == nil && b.all["linux"] != nil {
		err = json.Unmarshal(b.all["linux"], &b.linux)
	}
	if err != nil {
		return nil, fmt.Errorf("read the container's configuration: %s: %w", b.path, err)
	}
	return b, nil
}

// networkFor returns the name of a container's network, "" for none: that of its
// annotation, else of its environment, if startup.env_networks lists it, else the one that
// scon-oci was called with. An image may set both: Podman copies its annotations.
func (a *Agent) networkFor(o control.OCI, b *bundle) string {
	for _, named := range []struct{ by, network string }{
		{"annotation " + networkAnnotation, b.spec.Annotations[networkAnnotation]},
		{"variable " + networkVariable, b.variable()},
	} {
		if slices.Contains(a.opts.Config.EnvNetworks, named.network) {
			return named.network
		}
		if named.network != "" {
			a.log.Warn("a container names a network that startup.env_networks does not list; ignored",
				"container", o.ID, "by", named.by, "network", named.network)
		}
	}
	return o.Network
}

// variable returns the network that the container's environment names, or "".
func (b *bundle) variable() string {
	if b.spec.Process == nil {
		return ""
	}
	for _, v := range b.spec.Process.Env {
		if name, ok := strings.CutPrefix(v, networkVariable+"="); ok {
			return name
		}
	}
	return ""
}

func (b *bundle) namespace(kind specs.LinuxNamespaceType) *specs.LinuxNamespace {
	if b.spec.Linux == nil {
		return nil
	}
	for i, n := range b.spec.Linux.Namespaces {
		if n.Type == kind {
			return &b.spec.Linux.Namespaces[i]
		}
	}
	return nil
}

// wantsNetns reports whether the runtime would make a network namespace. Some
// runtimes accept the key "linux" in other letters; SCON does not.
func (b *bundle) wantsNetns() bool {
	n := b.namespace(specs.NetworkNamespace)
	return n != nil && n.Path == "" && b.linux != nil
}

func (b *bundle) hasUserns() bool { return b.namespace(specs.UserNamespace) != nil }

// setNetns sets the path of the container's network namespace.
func (b *bundle) setNetns(path string) error {
	b.namespace(specs.NetworkNamespace).Path = path
	var err error
	if b.linux["namespaces"], err = json.Marshal(b.spec.Linux.Namespaces); err != nil {
		return err
	}
	if b.all["linux"], err = json.Marshal(b.linux); err != nil {
		return err
	}
	content, err := json.Marshal(b.all)
	if err != nil {
		return err
	}
	info, err := os.Stat(b.path)
	if err != nil {
		return fmt.Errorf("write the container's configuration: %w", err)
	}
	draft := b.path + ".scon"
	err = os.WriteFile(draft, content, info.Mode().Perm())
	if err == nil {
		err = os.Rename(draft, b.path)
	}
	if err != nil {
		os.Remove(draft)
		return fmt.Errorf("write the container's configuration: %w", err)
	}
	return nil
}
