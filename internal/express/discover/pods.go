package discover

import (
	"slices"
	"strconv"
	"strings"
)

// Annotations that containerd writes into the OCI configuration of each container of a
// pod, whether Kubernetes' API server answers or not.
const (
	criType      = "io.kubernetes.cri.container-type"
	criContainer = "io.kubernetes.cri.container-name"
	criPod       = "io.kubernetes.cri.sandbox-name"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"

	criSandbox = "sandbox" // value of criType: the pod's own, without a program of the user's
)

// mostProcesses limits the processes of a pod that are read for the names of its
// containers: a container decides how many there are.
const mostProcesses = 512

// podOf returns "namespace/pod" of a container's annotations, "" if it is in no pod.
func podOf(annotations map[string]string) string {
	if ns, pod := annotations[criNamespace], annotations[criPod]; ns != "" && pod != "" {
		return ns + "/" + pod
	}
	return ""
}

// pod returns the pod behind a port, given one of its containers. It is identified by its
// sandbox, which lives as long as the pod, and named namespace/pod/container; several
// containers are joined by "+".
func (n *Namer) pod(ns *namespace, one Container, groups cgroups) Container {
	c := one
	var names, images []string
	seen := make(map[string]bool)
	for _, pid := range ns.pids[:min(len(ns.pids), mostProcesses)] {
		_, id := groups.containerOf(strconv.Itoa(pid))
		if id == "" || seen[id] {
			continue
		}
		seen[id] = true
		found, err := readContainerd(n.at.containerd, id)
		switch {
		case err != nil || podOf(found.labels) != podOf(one.Labels): // not of this pod
		case found.labels[criType] == criSandbox:
			c.ID, c.PID, c.Labels = id, pid, found.labels
		case found.labels[criContainer] != "":
			names = append(names, found.labels[criContainer])
			images = append(images, found.image)
		}
	}
	slices.Sort(names)
	slices.Sort(images)
	c.Pod = podOf(one.Labels)
	c.Name = c.Pod
	if len(names) > 0 { // none runs while the pod starts
		c.Name += "/" + strings.Join(slices.Compact(names), "+")
		c.Image = clean(strings.Join(slices.Compact(images), "+"))
	}
	return c
}
