// Package faults tests that faults around SCON break no connection, pass no packet that
// the kernel's own path would drop, and leave nothing behind. Files are named after the
// fault.
//
// Every test has a lab of its own with the command scon as its daemon. With
// SCON_LONG=1 the long forms run: see the constants beside long.
package faults
