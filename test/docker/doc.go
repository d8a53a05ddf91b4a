// Package docker tests SCON on a real Docker engine, and on a containerd without
// one, end to end.
//
// Every test has a machine of its own, made of namespaces:
//
//	 edge (outside)                     machine under test
//	+----------------+             +---------------------------------------+
//	| clients,       |             |  dockerd   iptables   scon            |
//	| MQTT broker,   |             |                                       |
//	| iperf3 server  |             |            docker0 --- veth -- nginx  |
//	|                |             |            br-... ---- veth -- echo   |
//	|      192.0.2.1 wire ===== uplink 192.0.2.2                           |
//	+----------------+             +---------------------------------------+
//
// The machine is a PID, a mount and a network namespace. Its init runs as long as the
// test process holds a pipe to it. When the pipe closes, also because the test process
// was killed, the kernel kills all processes inside and removes every mount, link and
// socket. None of it is visible on the host, except for control groups: they have a
// parent of their own and are removed at the end of the test. After SIGKILL they stay,
// empty.
//
// A test runs its traffic twice: without SCON, which validates the test itself, and
// with SCON, where it also asserts that the traffic was express in both directions.
package docker
