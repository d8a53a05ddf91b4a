package api

// OwnersPath is where the startup service tells whose its devices are: a stream
// of lines, each a list of Owner. The first line has all of them, the others are
// changes.
const OwnersPath = "/v1/startup/owners"

// Owner is whose a device of the host is.
type Owner struct {
	Host      string `json:"host"`            // the device
	Netns     string `json:"netns,omitempty"` // path of the namespace with its other end
	Container string `json:"container,omitempty"`
	Gone      bool   `json:"gone,omitempty"` // the device is nobody's any more
}
