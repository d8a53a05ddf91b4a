// Package cni implements the Container Network Interface, versions 0.1.0 to 1.1.0, for
// its two servers: the agent, to which scon-cni forwards a runtime's requests, and `scon
// cni`, which replaces the agent while it does not run.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// Supported lists the supported versions of the specification.
var Supported = version.All

// Request is a runtime's request: the environment and the input of a plugin.
type Request struct {
	Command     string // CNI_COMMAND
	ContainerID string
	Netns       string
	IfName      string
	Args        string
	Path        string // CNI_PATH
	Input       []byte // the network configuration
}

// Attachment is a container's device in a network.
type Attachment struct {
	ContainerID, IfName string
	Netns               string // path, as the runtime gave it; may be "" for DEL
	Args                string // CNI_ARGS, for another IPAM plugin
}

// Plugin executes the verbs of the specification. An error that is not a *types.Error is
// returned with code 999.
type Plugin interface {
	Add(Attachment, *Conf) (*types100.Result, error)
	Del(Attachment, *Conf) error
	Check(Attachment, *Conf) error
	GC(*Conf) error
	Status(*Conf) error
}

// since is the version that introduced a verb.
var since = map[string]string{"ADD": "0.1.0", "DEL": "0.1.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// Answer executes a request with p and returns the document for standard output: a
// result, nothing, or an error with failed set.
func Answer(r Request, p Plugin) (document []byte, failed bool) {
	document, err := answer(r, p)
	if err == nil {
		return document, false
	}
	var e *types.Error
	if !errors.As(err, &e) {
		e = types.NewError(types.ErrInternal, err.Error(), "")
	}
	named := struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{versionOf(r.Input), e}
	document, _ = json.Marshal(named)
	return document, true
}

func answer(r Request, p Plugin) ([]byte, error) {
	if r.Command == "VERSION" {
		var b bytes.Buffer
		err := Supported.Encode(&b)
		return b.Bytes(), err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	conf, err := Parse(r.Input)
	if r.Command == "DEL" && isInvalid(err) {
		conf, err = parseName(r.Input)
	}
	if err != nil {
		return nil, err
	}
	conf.Path = r.Path
	if err := checkVersion(conf.CNIVersion, r.Command); err != nil {
		return nil, err
	}
	a := Attachment{ContainerID: r.ContainerID, IfName: r.IfName, Netns: r.Netns, Args: r.Args}
	switch r.Command {
	case "ADD":
		result, err := p.Add(a, conf)
		if err != nil {
			return nil, err
		}
		return encode(result, conf.CNIVersion)
	case "DEL":
		return nil, p.Del(a, conf)
	case "CHECK":
		return nil, p.Check(a, conf)
	case "GC":
		return nil, p.GC(conf)
	default:
		return nil, p.Status(conf)
	}
}

// check refuses a request without a required variable, with the specification's message.
func (r Request) check() error {
	if since[r.Command] == "" {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_COMMAND is %q: want ADD, DEL, CHECK, GC, STATUS or VERSION", r.Command), "")
	}
	var missing []string
	need := func(name, value string) {
		if value == "" {
			missing = append(missing, name)
		}
	}
	ofContainer := r.Command == "ADD" || r.Command == "DEL" || r.Command == "CHECK"
	if ofContainer {
		need("CNI_CONTAINERID", r.ContainerID)
		need("CNI_IFNAME", r.IfName)
		if r.Command != "DEL" {
			need("CNI_NETNS", r.Netns)
		}
	}
	need("CNI_PATH", r.Path)
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "required env variables ["+strings.Join(missing, ",")+"] missing", "")
	}
	if !ofContainer {
		return nil
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return err
	}
	if r.Command == "ADD" && isPattern(r.IfName) {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_IFNAME is %q: want a name without '%%', which the kernel treats as a pattern", r.IfName), "")
	}
	return nil
}

// checkVersion refuses an unsupported version, or one without the verb.
func checkVersion(v, verb string) error {
	if !slices.Contains(Supported.SupportedVersions(), v) {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("cniVersion is %q: want one of %s", v, strings.Join(Supported.SupportedVersions(), ", ")), "")
	}
	if ok, err := version.GreaterThanOrEqualTo(v, since[verb]); err != nil || !ok {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("cniVersion %s has no %s: want %s or newer", v, verb, since[verb]), "")
	}
	return nil
}

// encode encodes a result in the form of a version.
func encode(result *types100.Result, v string) ([]byte, error) {
	converted, err := result.GetAsVersion(v)
	if err != nil {
		return nil, fmt.Errorf("convert the result to CNI %s: %w", v, err)
	}
	return json.Marshal(converted)
}

// versionOf returns the version in which an error is written.
func versionOf(input []byte) string {
	v, err := new(version.ConfigDecoder).Decode(input)
	if err != nil || !slices.Contains(Supported.SupportedVersions(), v) {
		return version.Current()
	}
	return v
}
