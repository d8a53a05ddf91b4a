package startup

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/internal/state"
)

// Record is an attachment in its file: the leased addresses and everything to
// remove with it.
type Record struct {
	Network     cni.Network      `json:"network"`
	ContainerID string           `json:"container_id"` // "" if it was rebuilt
	IfName      string           `json:"ifname"`
	Netns       string           `json:"netns,omitempty"`  // as the runtime gave it
	Number      uint64           `json:"number,omitempty"` // inode of the namespace that the device was made in
	Inode       uint64           `json:"inode,omitempty"`  // of Netns; 0 if the agent does not see that path
	Index       int              `json:"index,omitempty"`  // of its device there; 0 if it is not known
	Bundle      string           `json:"bundle,omitempty"`
	Pooled      string           `json:"pooled,omitempty"` // number of a pooled namespace
	Host        string           `json:"host"`             // device on the host
	Leases      []ipam.Lease     `json:"leases"`
	Result      *types100.Result `json:"result"`             // nil in an unfinished or rebuilt record
	Args        string           `json:"args,omitempty"`     // for another IPAM plugin
	CNIPath     string           `json:"cni_path,omitempty"` // for another IPAM plugin
	Conf        json.RawMessage  `json:"conf,omitempty"`     // for another IPAM plugin

	key       string
	completed bool // rebuilt, and completed by a request since
}

// newRecord returns the record of an attachment without a device.
func newRecord(at cni.Attachment, c *cni.Conf) *Record {
	r := &Record{
		Network: c.Network, ContainerID: at.ContainerID, IfName: at.IfName, Netns: at.Netns,
		key: keyOf(c.Name, at.ContainerID, at.IfName),
	}
	if c.IPAM.Type != cni.OwnIPAM {
		r.Args, r.CNIPath, r.Conf = at.Args, c.Path, c.Raw
	}
	return r
}

// unknownNetwork is the network of rebuilt records: their addresses are reserved in
// every network that may have leased them.
const unknownNetwork = "?"

// rebuilt reports whether the record was rebuilt from the kernel's state.
func (r *Record) rebuilt() bool { return r.Network.Name == unknownNetwork || r.completed }

// unfinished reports whether the record was written for another IPAM plugin by an
// ADD that was interrupted.
func (r *Record) unfinished() bool { return r.Result == nil && !r.rebuilt() }

// of returns a rebuilt record completed by a request.
func (r *Record) of(at cni.Attachment, c *cni.Conf) *Record {
	if r.Network.Name != unknownNetwork {
		return r
	}
	known := *r
	known.completed = true
	known.Network, known.ContainerID, known.IfName = c.Network, at.ContainerID, at.IfName
	known.Netns = cmp.Or(r.Netns, at.Netns)
	known.Args, known.CNIPath, known.Conf = at.Args, c.Path, c.Raw
	return &known
}

// keyOf returns the key of an attachment, which CNI identifies by these three.
func keyOf(network, containerID, ifname string) string {
	sum := sha256.Sum256([]byte(network + "\x00" + containerID + "\x00" + ifname))
	return hex.EncodeToString(sum[:6])
}

// Names of devices on the host identify the owner, even without a record.
const (
	inPlacePrefix = "scn" // and the attachment's key
	pooledPrefix  = "scp" // and the number of the pooled namespace
)

// store keeps one file for each record: a killed process leaves a complete record or
// none. It does not sync files, since none is valid after a reboot.
//
//	startup/                      the service's own directory: see package state
//	startup/boot                  the boot that everything here belongs to
//	startup/home                  the network namespace of the latest agent: number, path
//	startup/NUMBER/               of that namespace:
//	    agent                     held by the agent
//	    lock                      held by the agent, or by a `scon cni` without an agent
//	    networks/NAME             the configuration of a prepared network
//	    networks/NAME@DIGEST      an earlier one
//	    attachments/KEY@POOLED    a record; POOLED is "" for a device made in place
//	    pending/HASH@ID           a container of scon-oci whose device is made before its start
//	    deleted/KEY               a DEL that came while no agent ran
//	    corrupt/                  records that could not be read
type store struct {
	dir         string
	agent, lock *os.File // agent is nil in other processes
}

// home is the namespace of the latest agent of a state directory.
type home struct {
	Inode uint64 `json:"inode"`
	Netns string `json:"netns"` // as the agent was given it, "" for the machine's
}

// linkOf returns a symbolic link beside a socket outside the state directory. It leads
// a client without an agent to the state directory.
func linkOf(socket string) string { return socket + ".state" }

// leaveLink makes that link, or removes one that leads to another directory.
func leaveLink(socket, stateDir string) error {
	err := removeLink(socket)
	if err == nil && socket != "" && filepath.Dir(socket) != filepath.Clean(stateDir) {
		err = os.Symlink(stateDir, linkOf(socket))
	}
	if err != nil {
		return fmt.Errorf("link the socket to the state directory: %w", err)
	}
	return nil
}

func removeLink(socket string) error {
	if socket == "" {
		return nil
	}
	if err := os.Remove(linkOf(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stateDirOf returns the state directory of the agent behind a socket.
func stateDirOf(socket string) string {
	if dir, err := os.Readlink(linkOf(socket)); err == nil {
		return dir
	}
	return filepath.Dir(socket)
}

func homeFile(stateDir string) string { return filepath.Join(stateDir, "startup", "home") }

// readHome returns the zero home if no agent ran since boot.
func readHome(stateDir string) (h home, err error) {
	if err := discardOtherBoot(filepath.Join(stateDir, "startup")); err != nil {
		return h, err
	}
	b, err := os.ReadFile(homeFile(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return h, fmt.Errorf("read the agent's namespace: %w", err)
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("read the agent's namespace: %s: %w", homeFile(stateDir), err)
	}
	return h, nil
}

func (h home) write(stateDir string) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if there, err := os.ReadFile(homeFile(stateDir)); err == nil && bytes.Equal(there, b) {
		return nil // the disk may be full
	}
	return writeFile(homeFile(stateDir), b)
}

// dirOf returns the directory of the agent in a namespace.
func dirOf(stateDir string, inode uint64) string {
	return filepath.Join(stateDir, "startup", fmt.Sprint(inode))
}

// writeFile writes a file atomically.
func writeFile(path string, b []byte) error {
	dir, name := filepath.Split(path)
	draft := filepath.Join(dir, "."+name)
	err := os.WriteFile(draft, b, 0o600)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		os.Remove(draft)
	}
	return err
}

const bootID = "/proc/sys/kernel/random/boot_id"

// isBootID matches the contents of that file.
var isBootID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n$`)

// ErrBusy is openStore's error when another process holds the directory.
var ErrBusy = errors.New("another agent uses the directory")

// lockPatience is how long processes that share the directory wait for each other.
var lockPatience = 10 * time.Second

// openStore locks the directory until close, and discards the files of another boot.
// With wait the caller is not an agent, and leaves the lock to one that runs or starts. An agent
// waits for processes that replaced it meanwhile.
func openStore(stateDir string, inode uint64, wait bool) (_ *store, err error) {
	s := &store{dir: dirOf(stateDir, inode)}
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's directory: %w", err)
	}
	if err := discardOtherBoot(filepath.Dir(s.dir)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's directory: %w", err)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	agent, patience := filepath.Join(s.dir, "agent"), state.Dying
	if !wait {
		s.agent, err = lockFile(agent, patience)
		patience = lockPatience
	} else if state.Flocked(agent) {
		err = ErrBusy
	}
	if err == nil {
		s.lock, err = lockFile(filepath.Join(s.dir, "lock"), patience)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the agent's directory %s: %w", s.dir, err)
	}
	for _, d := range []string{"networks", "attachments", "pending", "deleted", "corrupt"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make the agent's directory: %w", err)
		}
	}
	return s, nil
}

// lockFile locks a file until it is closed. The locked file must still have its name.
func lockFile(path string, patience time.Duration) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = state.Flock(f, patience)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(held, named) {
			return f, nil
		}
		f.Close() // the previous holder removed the directory
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
	}
}

func (s *store) close() {
	s.lock.Close()
	s.agent.Close()
}

// removeAll removes the directory with the lock, and the files shared with agents of
// other namespaces if it is the last one.
func (s *store) removeAll() error {
	if aside, err := os.ReadDir(filepath.Join(s.dir, "corrupt")); err != nil || len(aside) > 0 {
		return err // kept for inspection
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("remove the agent's directory: %w", err)
	}
	shared := filepath.Dir(s.dir)
	left, err := os.ReadDir(shared)
	if err != nil || slices.ContainsFunc(left, fs.DirEntry.IsDir) {
		return err
	}
	for _, name := range []string{"home", "boot"} {
		if err := os.Remove(filepath.Join(shared, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the agent's directory: %w", err)
		}
	}
	return nil
}

// putNetwork records a prepared network, getNetworks reads them. The host state of an
// earlier configuration is removed with the others.
func (s *store) putNetwork(c *cni.Conf) error {
	path := filepath.Join(s.dir, "networks", c.Name)
	if b, err := os.ReadFile(path); err == nil {
		if old, err := cni.Parse(b); err == nil && old.Digest() != c.Digest() {
			if err := os.Rename(path, path+"@"+old.Digest()); err != nil {
				return fmt.Errorf("record network: %w", err)
			}
		}
	}
	if err := writeFile(path, c.Raw); err != nil {
		return fmt.Errorf("record network: %w", err)
	}
	return nil
}

func (s *store) getNetworks() (networks []*cni.Conf, err error) {
	files, err := os.ReadDir(filepath.Join(s.dir, "networks"))
	if err != nil {
		return nil, fmt.Errorf("read networks: %w", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(s.dir, "networks", f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read networks: %w", err)
		}
		if c, err := cni.Parse(b); err == nil { // else it is of another version
			networks = append(networks, c)
		}
	}
	return networks, nil
}

// WasAt reports whether an agent has used a state directory.
func WasAt(stateDir string) bool {
	_, err := os.Stat(homeFile(stateDir))
	return err == nil
}

// discardOtherBoot empties the directory if its files are of another boot. It keeps
// them if the file boot is missing or invalid: containers may depend on them, and
// attachments without a device are released in any case.
func discardOtherBoot(dir string) error {
	now, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	then, err := os.ReadFile(filepath.Join(dir, "boot"))
	if err == nil && string(then) == string(now) {
		return nil
	}
	left, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list files of another boot: %w", err)
	}
	if !isBootID.Match(then) {
		left = nil
	}
	for _, f := range left {
		if slices.Contains(state.Files, f.Name()) {
			continue // of the running service
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	if err == nil {
		err = writeFile(filepath.Join(dir, "boot"), now)
	}
	if err != nil {
		return fmt.Errorf("discard files of another boot: %w", err)
	}
	return nil
}

func (s *store) path(r *Record) string {
	return filepath.Join(s.dir, "attachments", r.key+"@"+r.Pooled)
}

// put writes a record atomically.
func (s *store) put(r *Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record attachment: %w", err)
	}
	if err := writeFile(s.path(r), b); err != nil {
		return fmt.Errorf("record attachment: %w", err)
	}
	return nil
}

func (s *store) remove(r *Record) error {
	err := os.Remove(s.path(r))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of attachment: %w", err)
	}
	return nil
}

// all reads every record. It moves an invalid one aside and returns only its key and
// pool number.
func (s *store) all() (whole, corrupt []*Record, err error) {
	dir := filepath.Join(s.dir, "attachments")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read attachments: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		key, pooled, ok := strings.Cut(f.Name(), "@")
		if !ok || strings.HasPrefix(key, ".") { // a draft
			os.Remove(path)
			continue
		}
		r := new(Record)
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("read attachment: %w", err)
		}
		if json.Unmarshal(b, r) != nil || r.Host == "" && len(r.Leases) == 0 && r.Conf == nil || r.Pooled != pooled || r.Network.Name == "" {
			aside := filepath.Join(s.dir, "corrupt", f.Name())
			if err := os.Rename(path, aside); err != nil {
				return nil, nil, fmt.Errorf("move a corrupt record aside: %w", err)
			}
			corrupt = append(corrupt, &Record{key: key, Pooled: pooled})
			continue
		}
		r.key = key
		whole = append(whole, r)
	}
	return whole, corrupt, nil
}

// markDeleted records a DEL for the next agent, in every namespace's directory:
// without a directory there was no ADD.
func markDeleted(stateDir, key string) error {
	if err := discardOtherBoot(filepath.Join(stateDir, "startup")); err != nil {
		return err
	}
	agents, err := filepath.Glob(filepath.Join(stateDir, "startup", "*", "deleted"))
	for _, dir := range agents {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, key), nil, 0o600))
	}
	if err != nil {
		return fmt.Errorf("record a DEL: %w", err)
	}
	return nil
}

// deleted returns the keys of recorded DELs; forget removes one.
func (s *store) deleted() ([]string, error) {
	files, err := os.ReadDir(filepath.Join(s.dir, "deleted"))
	if err != nil {
		return nil, fmt.Errorf("read recorded DELs: %w", err)
	}
	var keys []string
	for _, f := range files {
		keys = append(keys, f.Name())
	}
	return keys, nil
}

func (s *store) forget(key string) error {
	err := os.Remove(filepath.Join(s.dir, "deleted", key))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a recorded DEL: %w", err)
	}
	return nil
}
