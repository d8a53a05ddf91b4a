// Package cri runs pods by the interface of Kubernetes' container runtimes.
package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Runtime is a container runtime that answers at a socket.
type Runtime struct {
	conn   *grpc.ClientConn
	client cri.RuntimeServiceClient
}

// Connect returns the runtime at a unix socket. It need not answer yet.
func Connect(socket string) (*Runtime, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime: %w", err)
	}
	return &Runtime{conn, cri.NewRuntimeServiceClient(conn)}, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }

// Ready reports whether the runtime and its network work.
func (r *Runtime) Ready(ctx context.Context) bool {
	s, err := r.client.Status(ctx, &cri.StatusRequest{})
	ready := err == nil
	for _, c := range s.GetStatus().GetConditions() {
		ready = ready && c.Status
	}
	return ready
}

// Pod is what Run starts.
type Pod struct {
	Name    string
	Attempt uint32
	Cgroup  string // its parent
	Port    int32  // of the host, forwarded to the pod's port 80 by TCP; 0: none
}

// Run starts a pod with a network of its own and no container, and returns its ID.
func (r *Runtime) Run(ctx context.Context, p Pod) (id string, err error) {
	c := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: p.Name, Uid: p.Name, Namespace: "test", Attempt: p.Attempt},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    p.Cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{}},
		},
	}
	if p.Port != 0 {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: p.Port}}
	}
	s, err := r.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: c})
	return s.GetPodSandboxId(), err
}

// Remove stops a pod and removes it.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	if _, err := r.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := r.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}
