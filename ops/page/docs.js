// The description is validated by no one elsewhere. A call is made with the key that is entered, or
// with the session of this browser.
SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#docs", validatorUrl: null, deepLinking: true, docExpansion: "none",
  defaultModelsExpandDepth: -1, tagsSorter: "alpha", operationsSorter: "alpha",
});
