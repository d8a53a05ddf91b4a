// Package faults tests that nothing that goes wrong around SCON breaks a
// connection, lets a packet pass that the regular way would stop, or leaves
// anything behind: each file is named after what it protects.
//
// Every test has a lab of its own with the command scon as its daemon. With
// SCON_LONG=1 the long forms run: see the constants beside long.
package faults
