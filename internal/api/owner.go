package api

// OwnersPath is a stream of the owners of the startup service's devices: lines, each a
// list of Owner. The first line lists all devices, the others are changes.
const OwnersPath = "/v1/startup/owners"

// Owner is the container that a device of the host belongs to.
type Owner struct {
	Host      string `json:"host"`            // the device
	Netns     string `json:"netns,omitempty"` // path of the namespace with its other end
	Container string `json:"container,omitempty"`
	Gone      bool   `json:"gone,omitempty"` // the device has no owner any more
}
