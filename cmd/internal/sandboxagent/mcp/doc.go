// Package mcp offers the tools of servers that speak the Model Context Protocol to the native
// engine. Servers are programs that it starts, or they are called over HTTP.
//
// A server is not trusted with more than its own configuration: it gets neither the agent server's
// keys nor the conversation's secrets, its answers are bounded in time and size, and a server that
// fails is an error of its own calls only.
package mcp
