// Package acp runs coding agents that speak the Agent Client Protocol (ACP) over stdio, as the
// engine of a conversation (DESIGN.md in this folder). Package preset has the agents whose command
// lines are known.
package acp
