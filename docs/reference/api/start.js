// The description is the running server's own; nothing is asked of another host
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "list", filter: true, validatorUrl: null });
